"""Puts an engine together: model file, backend, weights, KV memory, program, executor, scheduler."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from homenode.compute.ops import Backend, KvGeometry, PlacedBackend
from homenode.engine.backend import make_backend
from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.executor.expert_usage import count_expert_usage
from homenode.engine.executor.inline import InlineExecutor
from homenode.engine.experts.group import expert_group_rank, not_in_common
from homenode.engine.experts.sizing import ExpertSharing, Kept, kept_of
from homenode.engine.experts.usage import EXPERT_USES, of_part
from homenode.engine.kv_transfer.checks import kept_as, require_transfer, targets_of
from homenode.engine.memory.available import memory_budget
from homenode.engine.memory.growth import growing_backend, page_changer
from homenode.engine.memory.headroom import headroom_of, memory_parts
from homenode.engine.memory.huge_pages import on_small_pages
from homenode.engine.memory.numa import leave_plan, settle_pages, spread_of, team_memory
from homenode.engine.memory.report import log_memory
from homenode.engine.memory.sizing import Sizes, chunk_of, growth_text, step_bytes, with_kv_memory_variable
from homenode.engine.messages import EngineReady
from homenode.engine.model_path.locate import locate_model
from homenode.engine.pinning import apply_binding, pin_current_thread
from homenode.engine.plan.cpu_contention import spin_us, too_many_threads
from homenode.engine.plan.device_detection import devices_of_service
from homenode.engine.plan.inline import (
    binding_of,
    expert_settings_problem,
    plan_weights,
    sizes_of,
    step_and_kv_bytes,
    weights_shortage,
    with_nodes_named,
    with_numa_decided,
)
from homenode.engine.plan.layout import executor_kind
from homenode.engine.plan.placement import UNPINNED, alone, team_groups, too_few_cores
from homenode.engine.plan.settings_without_effect import settings_without_effect
from homenode.engine.runtime.engine import Engine, Progress
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.worker.runner import Runner
from homenode.host.binding.huge_pages import disabled_for_this_process
from homenode.host.discovery.read import read_host
from homenode.host.refusals import named_refusals
from homenode.host.topology.finding import Finding
from homenode.host.topology.source import LiveSource
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.part import ModelPart
from homenode.model.parts import read_layer_split
from homenode.model.spec import Checkpoint
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.load import LoadedModel, kv_geometry_of, load_model
from homenode.model.weights.packed_cache import packed_folder
from homenode.start_phases import mark_phase
from homenode.transfer.fingerprint import fingerprint_of

if TYPE_CHECKING:
    from homenode.engine.kv_transfer.setup import KvTransferSetup


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
    config = locate_model(config)
    everybody = devices_of_service(config)
    devices = everybody[config.replica.number if config.replica else 0]
    group_rank = expert_group_rank(config, everybody)
    common = ExpertSharing(group_rank, dict(enumerate(experts))) if group_rank is not None and experts else None
    findings = (*not_in_common(config, everybody), *settings_without_effect(config, devices, os.environ))
    read_layer_split(config.parallel.layer_split)
    if executor_kind(config, devices) != "inline":
        from homenode.engine.runtime.build_workers import build_engine_of_workers  # built on this module

        return build_engine_of_workers(
            config, devices, progress, lookahead, own_process, micro_batches, common, findings
        )
    checkpoint = open_checkpoint(Path(str(config.model.path)))
    if problem := expert_settings_problem(config, checkpoint.spec):
        raise problem
    if config.replica is not None and config.replica.allowed:
        pin_current_thread(
            config.replica.allowed
        )  # the front, whose CPUs were inherited, may have moved to a few of them
    host = read_host(LiveSource(), accelerators=False)
    config = with_numa_decided(with_kv_memory_variable(config, host), checkpoint, host)
    binding = binding_of(config, checkpoint, host)
    if own_process:
        binding = alone(binding)
    if config.compute.backend == "torch":
        binding = replace(binding, others=())  # its threads are torch's own, which inherit where this process may be
    # Judged before this process is bound to its nodes: the kernel ends a process that wants more of them than there is.
    layout, on_nodes = plan_weights(config, checkpoint, host, binding, common)
    whole = ModelPart.whole(checkpoint.spec)
    mine = kept_of(layout, whole, common)
    crowded = () if config.replica else too_few_cores(host, binding)  # of several engines it is said with their places
    findings += (*binding.findings, *crowded, *too_many_threads(host, binding), *apply_binding(binding))
    compute = replace(config.compute, spin_us=spin_us(config.compute.spin_us, host, binding))
    backend = make_backend(compute, binding.team, team_groups(host, binding.team), team_memory(binding, host))
    geometry = kv_geometry_of(checkpoint.spec, layout, config.kv.block_size, config.kv.kv_cache_dtype)
    room = memory_budget(config, binding, there=mine.held)
    if short := weights_shortage(config, checkpoint.spec, mine, room):
        raise with_nodes_named(short, room, on_nodes, mine.own)
    sizes_of(config, checkpoint.spec, geometry, room, on_nodes, mine.own)
    require_transfer(config, geometry, step_and_kv_bytes(room, on_nodes, mine.own))
    mark_phase("plan")
    model = load_model(
        checkpoint,
        backend,
        quantize=config.model.quantize,
        dtype=config.model.dtype,
        max_model_len=config.model.max_model_len,
        progress=progress,
        packed_cache=packed_folder(config.model.packed_cache, Path(str(config.model.path))),
        spread_of=spread_of(binding),
        experts=None if common is None else common.share(0),
    )
    room = memory_budget(config, binding, taken=mine.own)
    sizes, left = (
        sizes_of(config, model.spec, geometry, room, on_nodes),
        step_and_kv_bytes(room, on_nodes, 0) - step_bytes(config, model.spec),
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
    cpu = binding.team[0] if compute.backend == "native" else UNPINNED
    spec = model.spec
    executor = count_expert_usage(
        InlineExecutor(
            runner,
            sizes.worker_limits(),
            lambda: (
                backend.statistics() | ({EXPERT_USES: of_part(whole, spec, program.expert_usage())} if spec.moe else {})
            ),
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
            findings += settle_pages(backend, binding, host)
            log_memory(backend, binding, host)
            if own_process:
                leave_plan(binding, backend.planned())
        findings += on_small_pages(backend.statistics(), host.transparent_huge_pages, disabled_for_this_process())
        ready = _ready(config, sizes, geometry, model, mine, backend, time.monotonic() - begin, binding, findings, left)
        kv_transfer = None
        if sharing is not None:
            kv_transfer = sharing.hand_over(cache)
            ready.details["kv_transfer"] = msgspec.to_builtins(kv_transfer.published)
        undone.pop_all()
    headroom = None if growing is None else headroom_of(memory_parts(binding))
    return Engine(scheduler, executor, ready, kv_transfer, headroom)


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
    binding: EngineBinding,
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
            "numa": binding.numa,
            "free_cpus": list(binding.free_of_compute),  # where a front disturbs nobody
        },
    )
