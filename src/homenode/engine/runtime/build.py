"""Puts an engine together: model file, backend, weights, KV memory, program, executor, scheduler."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from homenode.compute.devices import torch_missing
from homenode.compute.ops import Backend, GrowingBackend, KvGeometry, PlacedBackend
from homenode.compute.team_memory import TeamMemory
from homenode.cpuset import format_cpu_list
from homenode.engine.binding import EngineBinding
from homenode.engine.config import ComputeConfig, EngineConfig
from homenode.engine.executor.base import Executor
from homenode.engine.executor.expert_usage import USES, CountingExecutor
from homenode.engine.executor.inline import InlineExecutor
from homenode.engine.experts.group import expert_group_rank, expert_problem, not_in_common
from homenode.engine.experts.sizing import Kept, SharedExperts, kept_of, missing_layout
from homenode.engine.experts.usage import of_part
from homenode.engine.experts.usage_file import counts_problem
from homenode.engine.kv.chunks import PageChange
from homenode.engine.kv_transfer.checks import kept_as, require_transfer, targets_of, transfer_problems
from homenode.engine.memory.growth import taken_whole_because
from homenode.engine.memory.headroom import Headroom, headroom_of
from homenode.engine.memory.huge_pages import on_small_pages
from homenode.engine.memory.node_capacity import KvCapacity, check_homes, kv_capacity
from homenode.engine.memory.numa import leave_plan, settle_pages, spread_of, team_memory
from homenode.engine.memory.report import log_memory
from homenode.engine.memory.sizing import Sizes, chunk_of, growth_text, problems, resolve, step_bytes
from homenode.engine.messages import EngineReady
from homenode.engine.model_path.locate import locate_model as located
from homenode.engine.pinning import MemoryBudget, apply_binding, available_memory, pin_current_thread
from homenode.engine.plan.cpu_contention import spin_us, too_many_threads
from homenode.engine.plan.device_detection import devices_of_service
from homenode.engine.plan.layout import executor_kind
from homenode.engine.plan.numa_default import auto_is_meant
from homenode.engine.plan.placement import UNPINNED, alone, place_engine, team_groups, too_few_cores
from homenode.engine.plan.settings_without_effect import settings_without_effect
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.worker.runner import Runner
from homenode.errors import CapacityError, UserError
from homenode.host.binding.huge_pages import disabled_for_this_process
from homenode.host.binding.mempolicy_fallback import current_policy
from homenode.host.binding.syscalls import Syscalls
from homenode.host.placement.numa_demand import Decision
from homenode.host.placement.numa_policy import Chosen, Teams
from homenode.host.placement.variables import kv_cache_memory
from homenode.host.refusals import named_refusals
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.host.topology.read import read_host
from homenode.host.topology.source import LiveSource
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.parts import read_layer_split
from homenode.model.spec import Checkpoint, ModelSpec
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.load import LoadedModel, kv_geometry_of, load_model, plan_model
from homenode.model.weights.numa_choice import cost_choice, measured_speeds
from homenode.model.weights.packed_cache import packed_folder
from homenode.start_phases import mark_phase
from homenode.transfer.fingerprint import fingerprint_of
from homenode.units import format_bytes

if TYPE_CHECKING:
    from homenode.engine.kv_transfer.setup import KvTransferLink, KvTransferSetup

Progress = Callable[[int, int], None]

_TYPICAL_CONTEXT = 1024  # tokens of the sequence that --numa auto is to be fast for


@dataclass(frozen=True)
class Engine:
    """The parts of an engine that is ready to run; `core.EngineCore` runs it."""

    scheduler: Scheduler
    executor: Executor
    ready: EngineReady
    kv_transfer: KvTransferLink | None = None
    headroom: Callable[[], Headroom] | None = (
        None  # what the machine can give to KV memory that grows; None: it does not
    )


def make_backend(
    compute: ComputeConfig,
    cpus: tuple[int, ...],
    groups: Sequence[Sequence[int]] | None = None,
    memory: TeamMemory | None = None,
) -> Backend:
    """What computes, one thread on each of `cpus` (-1: not pinned), in the groups of `placement.team_groups`, with memory of their homes.

    UserError for an unknown level, HostError where the native core is needed and was not compiled.
    """
    if compute.backend == "reference":
        from homenode.compute.reference import ReferenceBackend

        return ReferenceBackend()
    if compute.backend == "torch":
        return _torch_backend(compute)
    from homenode.compute.native import (
        NativeBackend,  # needs the compiled core, which the reference backend does without
    )

    return NativeBackend(cpus, spin_us=compute.spin_us, level=compute.isa, groups=groups, memory=memory)


def _torch_backend(compute: ComputeConfig) -> Backend:
    if missing := torch_missing("--backend torch", "backend"):
        raise missing
    from homenode.compute.torch import open_backend  # takes seconds, and is an extra

    return open_backend("torch:cpu", attention=compute.attention_backend, enforce_eager=compute.enforce_eager)


@named_refusals("laying out the engine")
def build_engine(
    config: EngineConfig,
    progress: Progress | None = None,
    lookahead: int = 1,
    own_process: bool = False,
    micro_batches: int = 0,
    experts: Sequence[int] = (),
) -> Engine:
    """Load the model and lay out everything. `progress` is told (bytes done, bytes in all) while weights are read.

    `own_process`: nothing else lives in this process, so that all its threads may be kept off the CPUs that compute. `micro_batches`: of an engine
    with several stages, see `schedule.pace`. `experts`: descriptors of memory for experts that several engines keep in common, one for each worker;
    they stay open as long as the engine. Without them every engine has all experts.

    Raises UserError, CapacityError and CheckpointError for what the user can mend, before anything large is read wherever that is
    possible, and HostError when the machine refuses.
    """
    begin = time.monotonic()
    config = located(config)
    everybody = devices_of_service(config)
    devices = everybody[config.replica.number if config.replica else 0]
    seat = expert_group_rank(config, everybody)
    common = SharedExperts(seat, dict(enumerate(experts))) if seat is not None and experts else None
    findings = (*not_in_common(config, everybody), *settings_without_effect(config, devices, os.environ))
    read_layer_split(config.parallel.layer_split)
    if executor_kind(config, devices) != "inline":
        from homenode.engine.runtime.build_workers import build_engine_of_workers  # built on this module

        return build_engine_of_workers(
            config, devices, progress, lookahead, own_process, micro_batches, common, findings
        )
    checkpoint = open_checkpoint(Path(str(config.model.path)))
    if problem := _model_problem(config, checkpoint.spec):
        raise problem
    if config.replica is not None and config.replica.allowed:
        pin_current_thread(
            config.replica.allowed
        )  # the front, whose CPUs were inherited, may have moved to a few of them
    host = read_host(LiveSource(), accelerators=False)
    config = settled_numa(with_variables(config, host), checkpoint, host)
    place = _place(config, checkpoint, host)
    if own_process:
        place = alone(place)
    if config.compute.backend == "torch":
        place = replace(place, others=())  # its threads are torch's own, which inherit where this process may be
    # Judged before this process is bound to its nodes: the kernel ends a process that wants more of them than there is.
    layout, on_nodes = _planned(config, checkpoint, host, place, common)
    whole = ModelPart.whole(checkpoint.spec)
    mine = kept_of(layout, whole, common)
    crowded = () if config.replica else too_few_cores(host, place)  # of several engines it is said with their places
    findings += (*place.findings, *crowded, *too_many_threads(host, place), *apply_binding(place))
    compute = replace(config.compute, spin_us=spin_us(config.compute.spin_us, host, place))
    backend = make_backend(compute, place.team, team_groups(host, place.team), team_memory(place, host))
    geometry = kv_geometry_of(checkpoint.spec, layout, config.kv.block_size, config.kv.kv_cache_dtype)
    room = _room(config, place, there=mine.held)
    if short := _weights_problem(config, checkpoint.spec, mine, room):
        raise _at_home(short, room, on_nodes, mine.own)
    _sizes(config, checkpoint.spec, geometry, room, on_nodes, mine.own)
    require_transfer(config, geometry, _left(room, on_nodes, mine.own))
    mark_phase("plan")
    model = load_model(
        checkpoint,
        backend,
        quantize=config.model.quantize,
        dtype=config.model.dtype,
        max_model_len=config.model.max_model_len,
        progress=progress,
        packed_cache=packed_folder(config.model.packed_cache, Path(str(config.model.path))),
        spread_of=spread_of(place),
        experts=None if common is None else common.share(0),
    )
    room = _room(config, place, taken=mine.own)
    sizes, left = (
        _sizes(config, model.spec, geometry, room, on_nodes),
        _left(room, on_nodes, 0) - step_bytes(config, model.spec),
    )
    mark_phase("weights")
    sharing = _sharing(config, checkpoint, layout, geometry, backend)
    growing = growing_backend(config, backend, devices)
    if growing is not None:
        sizes = replace(sizes, **chunk_of(geometry, sizes.num_blocks))
        cache = growing.kv_cache(geometry, sizes.num_blocks, touched=False)
    else:
        cache = sharing.kv_cache(sizes.num_blocks) if sharing else backend.kv_cache(geometry, sizes.num_blocks)
    program = backend.compile(model.forward(cache), sizes.step_limits())
    mark_phase("KV memory and buffers")
    runner = Runner(program, backend, sizes.block_size, eos_token_ids=model.spec.eos_token_ids)
    # The thread of the steps is the first of the team while it computes; staying there it is not moved about between two steps.
    cpu = place.team[0] if compute.backend == "native" else UNPINNED
    spec = model.spec
    executor = count_expert_usage(
        InlineExecutor(
            runner,
            sizes.worker_limits(),
            lambda: backend.statistics() | ({USES: of_part(whole, spec, program.expert_usage())} if spec.moe else {}),
            cpu=cpu,
            change_pages=None if growing is None else page_changer(growing),
        ),
        config,
        spec,
    )
    with ExitStack() as undone:
        undone.callback(executor.close)  # its thread would keep all that was made, and the team's threads
        scheduler = Scheduler(
            config.scheduler,
            config.kv,
            executor.limits(),
            model.spec.eos_token_ids,
            lookahead=lookahead,
            seeds=None if config.model.seed is None else random.Random(config.model.seed),
            hash_seed=sharing.hash_seed if sharing else None,
        )
        if isinstance(backend, PlacedBackend):
            findings += settle_pages(backend, place, host)
            log_memory(backend, place, host)
            if own_process:
                leave_plan(place, backend.planned())
        findings += on_small_pages(backend.statistics(), host.transparent_huge_pages, disabled_for_this_process())
        ready = _ready(config, sizes, geometry, model, mine, backend, time.monotonic() - begin, place, findings, left)
        kv_transfer = None
        if sharing is not None:
            kv_transfer = sharing.hand_over(cache)
            ready.details["kv_transfer"] = msgspec.to_builtins(kv_transfer.published)
        undone.pop_all()
    headroom = None if growing is None else headroom_of(memory_parts(place))
    return Engine(scheduler, executor, ready, kv_transfer, headroom)


def growing_backend(config: EngineConfig, backend: Backend, devices: Sequence[str]) -> GrowingBackend | None:
    """The backend, if its KV memory is to be taken when it is used."""
    grows = taken_whole_because(config, devices) is None
    return backend if grows and isinstance(backend, GrowingBackend) else None


def page_changer(backend: GrowingBackend) -> Callable[[Sequence[PageChange]], None]:
    """What carries out changes of the pages of a backend's KV memory."""
    return lambda changes: backend.change_kv_pages([(c.first, c.past, bool(c.presence)) for c in changes])


def memory_parts(place: EngineBinding) -> tuple[tuple[int, ...], ...]:
    """The nodes that the parts of an engine's KV memory come from, about as much from each; empty: any of the machine's."""
    if place.thread_memory:
        return tuple((node,) for node in sorted(set(place.thread_memory)))
    return (tuple(place.memory_nodes),) if place.memory_nodes else ()


def count_expert_usage(executor: Executor, config: EngineConfig, spec: ModelSpec) -> Executor:
    """The executor, and with experts what counts how they are used."""
    return CountingExecutor(executor, spec, config.parallel.expert_counts) if spec.moe else executor


@named_refusals("checking the settings")
def check_config(config: EngineConfig) -> list[UserError]:
    """Everything wrong with these settings for this model on this machine, without reading a weight. Empty: the engine would start.

    Raises what opening the model raises: without its figures nothing can be said.
    """
    config = located(config)
    try:
        everybody = devices_of_service(config)
        devices = everybody[config.replica.number if config.replica else 0]
        inline = executor_kind(config, devices) == "inline"
        read_layer_split(config.parallel.layer_split)
    except UserError as error:
        return [error]
    seat = expert_group_rank(config, everybody)
    common = None if seat is None else SharedExperts(seat)
    if not inline:
        from homenode.engine.plan.workers import check_engine_of_workers  # built on this module

        return check_engine_of_workers(config, devices, common)
    host = read_host(LiveSource(), accelerators=False)
    found: list[UserError] = []
    place = EngineBinding(())
    try:
        config = with_variables(config, host)
    except UserError as error:
        found.append(error)
    checkpoint = open_checkpoint(Path(str(config.model.path)))
    if problem := _model_problem(config, checkpoint.spec):
        found.append(problem)
    config = settled_numa(config, checkpoint, host)
    try:
        place = _place(config, checkpoint, host)
    except UserError as error:
        found.append(error)
    return found + _check_model(config, checkpoint, host, place, common)


def unused_settings(config: EngineConfig) -> tuple[Finding, ...]:
    """The settings that were given and have no effect, for what `check_config` has found nothing wrong with."""
    config = located(config)
    return settings_without_effect(config, devices_of_service(config)[0], os.environ)


def _model_problem(config: EngineConfig, spec: ModelSpec) -> UserError | None:
    """What is asked of experts and this model has not."""
    return expert_problem(config, spec) or counts_problem(config.parallel.expert_counts, spec)


def _place(config: EngineConfig, checkpoint: Checkpoint, host: Host) -> EngineBinding:
    """The engine's place: as the front decided for all of several engines, else by its own settings."""
    return config.replica.place if config.replica else place_of_engine(config, checkpoint, host)


def _room(config: EngineConfig, place: EngineBinding, taken: int = 0, there: int = 0) -> MemoryBudget:
    """What may still be taken, with `there` bytes that are counted as taken and are to be used again. One of several engines keeps within its share, of
    which it has `taken` some: all of them load at once, and each would otherwise count the memory that the others are about to take."""
    room = available_memory(place)
    room = replace(room, size=room.size + there)
    if config.replica is None or config.replica.memory is None:
        return room
    return replace(room, size=min(room.size, max(0, config.replica.memory - taken)))


def with_variables(config: EngineConfig, host: Host) -> EngineConfig:
    """The config with the size of KV memory that a variable gives, where the settings give none. UserError for a variable that says no such thing."""
    return replace(
        config, kv=replace(config.kv, kv_cache_memory=kv_cache_memory(config.kv.kv_cache_memory, host.variables))
    )


def memory_left(config: EngineConfig, place: EngineBinding, taken: int = 0, there: int = 0) -> int:
    """Bytes that a worker in this place may still take, of which it has `taken` some; `there`: those that others have left it."""
    return _room(config, place, taken, there).size


def place_of_engine(config: EngineConfig, checkpoint: Checkpoint, host: Host) -> EngineBinding:
    """Where an engine of this model runs. Raises what `place_engine` raises."""
    return place_engine(config.placement, config.compute.threads, host, numa_choice(config, checkpoint, host))


def settled_numa(config: EngineConfig, checkpoint: Checkpoint, host: Host) -> EngineConfig:
    """With what --numa auto comes to where nobody has said how the engine is placed (`auto_is_meant`). As given where that is not so, or where the
    nodes by themselves have too little room for what all of them together have room for."""
    if not auto_is_meant(config, host, current_policy(Syscalls())):
        return config
    asked = replace(config, placement=replace(config.placement, numa="auto"))
    try:
        place = place_of_engine(asked, checkpoint, host)
    except UserError:
        return config
    if place.numa in (None, "replicate") or _check_model(asked, checkpoint, host, place):
        return config
    node = host.cpu_by_id[place.team[0]].node
    home = (node,) if place.numa == "local" and node is not None else ()
    return replace(asked, numa_settled=Decision(str(place.numa), place.numa_why, home))


def numa_choice(config: EngineConfig, checkpoint: Checkpoint, host: Host) -> Callable[[Teams], Chosen]:
    """What settles --numa auto: this model's figures. It is asked where several nodes can compute; elsewhere only the file of speeds is checked."""
    measured = measured_speeds(config.placement.numa_measured)

    def choose(teams: Teams) -> Chosen:
        if config.numa_settled is not None:
            return config.numa_settled
        backend = make_backend(config.compute, (UNPINNED,))
        layout = plan_model(checkpoint, backend, quantize=config.model.quantize, dtype=config.model.dtype)
        geometry = kv_geometry_of(checkpoint.spec, layout, config.kv.block_size, config.kv.kv_cache_dtype)
        context = min(_TYPICAL_CONTEXT, config.model.max_model_len or checkpoint.spec.max_position)
        return cost_choice(host, checkpoint.spec, layout, geometry, 1, context, measured)(teams)

    return choose


def _planned(
    config: EngineConfig,
    checkpoint: Checkpoint,
    host: Host,
    place: EngineBinding,
    common: SharedExperts | None = None,
) -> tuple[WeightLayout, KvCapacity | None]:
    """How every matrix is kept, and what the nodes leave for KV memory. Raises what `plan_model` and `check_homes` raise."""
    backend = make_backend(config.compute, (UNPINNED,))
    layout = plan_model(checkpoint, backend, quantize=config.model.quantize, dtype=config.model.dtype)
    whole = ModelPart.whole(checkpoint.spec)
    wanted = missing_layout(layout, whole, common) if common and common.is_there(0) else layout
    homes = check_homes(config, host, place, wanted, backend, common.owners(wanted, whole) if common else {})
    return layout, kv_capacity(homes, place, checkpoint.spec.num_kv_heads)


def _check_model(
    config: EngineConfig,
    checkpoint: Checkpoint,
    host: Host,
    place: EngineBinding,
    common: SharedExperts | None = None,
) -> list[UserError]:
    room = _room(config, place)
    try:
        layout, on_nodes = _planned(config, checkpoint, host, place, common)
    except UserError as error:
        return [error, *transfer_problems(config)]
    mine = kept_of(layout, ModelPart.whole(checkpoint.spec), common)
    geometry = kv_geometry_of(checkpoint.spec, layout, config.kv.block_size, config.kv.kv_cache_dtype)
    left = _left(room, on_nodes, mine.own)
    short = _weights_problem(config, checkpoint.spec, mine, room)
    found = [short] if short else problems(config, checkpoint.spec, geometry, left)
    return [_at_home(problem, room, on_nodes, mine.own) for problem in found] + transfer_problems(
        config, geometry, left
    )


def _weights_problem(config: EngineConfig, spec: ModelSpec, mine: Kept, room: MemoryBudget) -> CapacityError | None:
    """Why there is no room for the weights alone, if so."""
    return weights_problem(config, spec, mine, room.size) if mine.own > room.size else None


def weights_problem(config: EngineConfig, spec: ModelSpec, mine: Kept, there: int) -> CapacityError:
    """That the weights of an engine or a worker take more than the bytes that are `there`, and what would help."""
    advice = ["keep them smaller (--quantize)"]
    if config.replica is not None:
        advice.append("have fewer engines")
        if spec.moe is not None and not config.parallel.enable_expert_parallel:
            advice.append("keep the experts once for all engines (--enable-expert-parallel)")
    besides = f" beside {format_bytes(mine.common)} of experts that other engines keep" if mine.common else ""
    return CapacityError(
        f"the weights take {format_bytes(mine.own)}{besides}, and {format_bytes(there)} are available; {', or '.join(advice)}",
        param="model",
    )


def _sizes(
    config: EngineConfig,
    spec: ModelSpec,
    geometry: KvGeometry,
    room: MemoryBudget,
    on_nodes: KvCapacity | None,
    weights: int = 0,
) -> Sizes:
    """What the engine is laid out for, with `weights` bytes still to be read."""
    try:
        return resolve(config, spec, geometry, _left(room, on_nodes, weights))
    except UserError as error:
        raise _at_home(error, room, on_nodes, weights) from None


def _left(room: MemoryBudget, on_nodes: KvCapacity | None, weights: int) -> int:
    """Bytes for buffers and KV memory."""
    left = max(0, room.size - weights)
    return left if on_nodes is None else min(left, on_nodes.size)


def _at_home(error: UserError, room: MemoryBudget, on_nodes: KvCapacity | None, weights: int) -> UserError:
    """Of too little memory it is said on which nodes, as others may have plenty."""
    if not isinstance(error, CapacityError):
        return error
    if on_nodes is not None and on_nodes.size < room.size - weights:
        return on_nodes.explain(error)
    if not room.nodes:
        return error
    where = f"memory is bound to NUMA node {format_cpu_list(room.nodes)}, where {format_bytes(room.size)} can be had"
    return CapacityError(f"{error.message}; {where}", param=error.param, **error.facts)


def _sharing(
    config: EngineConfig, checkpoint: Checkpoint, layout: WeightLayout, geometry: KvGeometry, backend: Backend
) -> KvTransferSetup | None:
    """What makes KV memory that other engines can be given; None where none is handed over."""
    if not config.transfer.on:
        return None
    from homenode.engine.kv_transfer.setup import KvTransferSetup  # needs the native core

    fingerprint = fingerprint_of(
        config.transfer, checkpoint, geometry, kept_as(config, targets_of(layout)), config.model.max_model_len
    )
    return KvTransferSetup(config.transfer, backend, geometry, fingerprint)


def _ready(
    config: EngineConfig,
    sizes: Sizes,
    geometry: KvGeometry,
    model: LoadedModel,
    mine: Kept,
    backend: Backend,
    seconds: float,
    place: EngineBinding,
    findings: Sequence[Finding],
    room: int,
) -> EngineReady:
    return EngineReady(
        model=config.model_name,
        max_model_len=sizes.max_model_len,
        vocab_size=sizes.vocab_size,
        num_blocks=sizes.num_blocks,
        block_size=sizes.block_size,
        max_num_batched_tokens=sizes.max_num_batched_tokens,
        max_num_seqs=sizes.max_num_seqs,
        chunked_prefill=config.scheduler.enable_chunked_prefill,
        sampling_defaults=dict(model.spec.generation),
        details={
            "architecture": model.spec.architecture,
            "load_seconds": round(seconds, 3),
            "weight_bytes": mine.own,
            "shared_weight_bytes": mine.common,
            "notes": [
                *model.layout.notes,
                *model.notes,
                *(finding.text for finding in findings if finding.severity != "info"),
            ],
            "kv_bytes": sizes.num_blocks * geometry.block_bytes,
            "kv_dtype": geometry.dtype,
            "kv_growth": growth_text(config, sizes, geometry, room),
            "kv_grows": sizes.chunk_blocks > 0,
            "compute": backend.statistics(),
            "numa": place.numa,
            "free_cpus": list(place.free_of_compute),  # where a front disturbs nobody
        },
    )
