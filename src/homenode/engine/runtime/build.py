"""Puts an engine together: model file, backend, weights, KV memory, program, executor, scheduler."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from homenode.compute.ops import Backend, KvGeometry, PlacedBackend
from homenode.engine.assignment import EngineAssignment
from homenode.engine.backend import make_backend
from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.executor.expert_usage import count_expert_usage
from homenode.engine.executor.inline import InlineExecutor
from homenode.engine.experts.group import expert_group_rank, not_in_common
from homenode.engine.experts.sizing import ExpertSharing, Kept
from homenode.engine.experts.usage import EXPERT_USES, of_part
from homenode.engine.kv_transfer.checks import kept_as, require_transfer, targets_of
from homenode.engine.memory.available import memory_budget
from homenode.engine.memory.growth import growing_backend, page_changer
from homenode.engine.memory.headroom import headroom_of, memory_parts
from homenode.engine.memory.huge_pages import on_small_pages
from homenode.engine.memory.numa import leave_plan, settle_pages, spread_of, team_memory
from homenode.engine.memory.report import log_memory
from homenode.engine.memory.sizing import Sizes, chunk_of, growth_text, step_bytes, weights_problem
from homenode.engine.messages import EngineReady
from homenode.engine.model_path.locate import locate_model
from homenode.engine.pinning import apply_binding, pin_current_thread
from homenode.engine.plan.cpu_contention import spin_us, too_many_threads
from homenode.engine.plan.device_detection import devices_of_service
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.inline import sizes_of
from homenode.engine.plan.machine import read_machine
from homenode.engine.plan.make import plan_engine
from homenode.engine.plan.placement import UNPINNED, alone, team_groups, too_few_cores
from homenode.engine.plan.settings_without_effect import settings_without_effect
from homenode.engine.runtime.engine import Engine, Progress, make_scheduler, ready_message
from homenode.engine.worker.runner import Runner
from homenode.host.binding.huge_pages import disabled_for_this_process
from homenode.host.refusals import named_refusals
from homenode.host.topology.finding import Finding
from homenode.model.checkpoint.index import open_checkpoint
from homenode.model.parts import read_layer_split
from homenode.model.spec import Checkpoint
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.load import LoadedModel, load_model
from homenode.model.weights.packed_cache import packed_folder
from homenode.start_phases import mark_phase
from homenode.transfer.fingerprint import fingerprint_of

if TYPE_CHECKING:
    from homenode.engine.kv_transfer.setup import KvTransferSetup


@named_refusals("laying out the engine")
def build_engine(
    assignment: EngineAssignment,
    progress: Progress | None = None,
    lookahead: int = 1,
    own_process: bool = False,
    micro_batches: int = 0,
    experts: Sequence[int] = (),
) -> Engine:
    """Load the model and lay out everything. `progress` is told (bytes done, bytes in all) while weights are read.

    `own_process`: nothing else lives in this process, so that all its threads may be kept off the CPUs that compute.
    `micro_batches`: of an engine with several stages, see `scheduler.micro_batching`. `experts`: descriptors of memory
    for experts that several engines keep in common, one for each worker; they stay open as long as the engine. Without
    them every engine has all experts.

    Raises UserError, CapacityError and CheckpointError for what the user can mend, before anything large is read
    wherever that is possible, and HostError when the machine refuses.
    """
    begin = time.monotonic()
    config = locate_model(assignment.config)
    assignment, replica = replace(assignment, config=config), assignment.replica
    everybody = devices_of_service(assignment)
    devices = everybody[assignment.number]
    group_rank = expert_group_rank(assignment, everybody)
    common = ExpertSharing(group_rank, dict(enumerate(experts))) if group_rank is not None and experts else None
    engines = replica.count if replica else None
    findings = (*not_in_common(assignment, everybody), *settings_without_effect(config, devices, os.environ, engines))
    read_layer_split(config.parallel.layer_split)
    checkpoint = open_checkpoint(Path(str(config.model.path)))
    if replica is not None and replica.allowed:
        # the front, whose CPUs were inherited, may have moved to a few of them
        pin_current_thread(replica.allowed)
    machine = read_machine(config, devices)

    def planned() -> EnginePlan:
        return plan_engine(assignment, checkpoint, machine, common)

    plan = planned()
    if plan.executor == "inline":
        return _build_inline(plan, findings, progress, lookahead, own_process, begin)
    from homenode.engine.runtime.build_workers import build_engine_of_workers  # needs what starts processes

    return build_engine_of_workers(plan, planned, findings, progress, lookahead, own_process, micro_batches, begin)


def _build_inline(
    plan: EnginePlan,
    findings: tuple[Finding, ...],
    progress: Progress | None,
    lookahead: int,
    own_process: bool,
    begin: float,
) -> Engine:
    """An engine that computes in this process. `begin`: when the start began, by `time.monotonic`."""
    config, checkpoint, host, common = plan.config, plan.checkpoint, plan.host, plan.common
    (worker,), (layout,), (geometry,) = plan.layout.workers, plan.weights, plan.geometries
    binding, whole, mine = worker.binding, worker.part, plan.kept(worker)
    if own_process:
        binding = alone(binding)
    if config.compute.backend == "torch":
        binding = replace(binding, others=())  # its threads are torch's own, which inherit where this process may be
    crowded = () if plan.replica else too_few_cores(host, binding)  # of several engines it is said with their places
    # The plan was judged before this binds the process to its nodes: the kernel ends a process that wants more of them
    # than there is.
    findings += (*binding.findings, *crowded, *too_many_threads(host, binding), *apply_binding(binding))
    compute = replace(config.compute, spin_us=spin_us(config.compute.spin_us, host, binding))
    backend = make_backend(compute, binding.team, team_groups(host, binding.team), team_memory(binding, host))
    budget = memory_budget(plan.assignment.memory_share, binding, already_held=mine.resident)
    if mine.own > budget.size:
        short = weights_problem(config, checkpoint.spec, mine, budget.size, several=plan.replica is not None)
        raise plan.with_nodes_named(short, budget, mine.own)
    sizes_of(plan, budget, mine.own)
    require_transfer(config, plan.replica, geometry, plan.within_nodes(max(0, budget.size - mine.own)))
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
    budget = memory_budget(plan.assignment.memory_share, binding, taken=mine.own)
    sizes, left = sizes_of(plan, budget), plan.within_nodes(budget.size) - step_bytes(config, model.spec)
    mark_phase("weights")
    sharing = _sharing(config, checkpoint, layout, geometry, backend)
    growing = growing_backend(config, backend, [worker.device])
    if growing is not None:
        sizes = replace(sizes, **chunk_of(geometry, sizes.num_blocks))
        cache = growing.kv_cache(geometry, sizes.num_blocks, touched=False)
    else:
        cache = sharing.kv_cache(sizes.num_blocks) if sharing else backend.kv_cache(geometry, sizes.num_blocks)
    state = backend.state_memory(geometry.state, sizes.state_slots) if geometry.state else None
    program = backend.compile(model.forward(cache, state), sizes.step_limits())
    mark_phase("KV memory and buffers")
    runner = Runner(program, backend, sizes.block_size, eos_token_ids=model.spec.eos_token_ids, state=state)
    # The thread of the steps is the first of the team while it computes; staying there it is not moved about between
    # two steps.
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
        scheduler = make_scheduler(plan, executor.limits(), lookahead, hash_seed=sharing.hash_seed if sharing else None)
        if isinstance(backend, PlacedBackend):
            findings += settle_pages(backend, binding, host)
            log_memory(backend, binding, host)
            if own_process:
                leave_plan(binding, backend.planned())
        findings += on_small_pages(backend.statistics(), host.transparent_huge_pages, disabled_for_this_process())
        ready = _ready(plan, sizes, model, mine, backend, time.monotonic() - begin, binding, findings, left)
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
    plan: EnginePlan,
    sizes: Sizes,
    model: LoadedModel,
    mine: Kept,
    backend: Backend,
    seconds: float,
    binding: EngineBinding,
    findings: Sequence[Finding],
    left: int,
) -> EngineReady:
    return ready_message(
        plan,
        sizes,
        seconds,
        notes=[
            *model.layout.notes,
            *model.notes,
            *(finding.text for finding in findings if finding.severity != "info"),
        ],
        weight_bytes=mine.own,
        shared_weight_bytes=mine.common,
        kv_growth=growth_text(plan.config, sizes, plan.geometries[0], left),
        compute=backend.statistics(),
        numa=binding.numa,
        free_cpus=list(binding.free_of_compute),  # where a front disturbs nobody
    )
