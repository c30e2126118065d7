"""Puts an engine together: model file, backend, weights, KV memory, program, executor, scheduler."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from homenode.compute.ops import Backend
from homenode.engine.assignment import EngineAssignment
from homenode.engine.channels.messages import Fits
from homenode.engine.cpu_claims import CpuClaim, open_claims
from homenode.engine.executor.base import EngineWorkers, Executor
from homenode.engine.executor.expert_usage import count_expert_usage
from homenode.engine.executor.inline_workers import InlineWorkers
from homenode.engine.experts.group import expert_group_rank
from homenode.engine.experts.sizing import ExpertSharing
from homenode.engine.kv.block_source import BlockSource
from homenode.engine.kv_transfer.fingerprint import facts_of_kv, fingerprint_of
from homenode.engine.memory.growth import taken_whole_because
from homenode.engine.memory.headroom import Headroom, headroom_of, memory_parts
from homenode.engine.memory.sizing import chunk_of_parts, growth_text, resolve, step_bytes
from homenode.engine.memory.state_sizing import state_form, state_interval, state_pages
from homenode.engine.messages import EngineReady
from homenode.engine.model_path.locate import locate_model
from homenode.engine.pinning import pin_process_threads
from homenode.engine.plan.accelerators.device_detection import devices_of_service
from homenode.engine.plan.drafting import heads_left_out, vocabulary_problem, without_spare_drafter
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.free_cores import NEIGHBOUR
from homenode.engine.plan.machine import MachineFacts, busy_where_it_counts, read_machine
from homenode.engine.plan.make import claimed_cpus, plan_engine, told_of_settings
from homenode.engine.plan.opened_model import open_engine_model
from homenode.engine.plan.rules.settings_without_effect import worth_telling
from homenode.engine.plan.worker_layout import WorkerPlan, computing_cpus, cpus_of_sets
from homenode.engine.runtime.engine import Engine, MakeDrafter, Progress
from homenode.engine.runtime.neighbour_watch import move_of, watch_of
from homenode.engine.runtime.planned_parts import make_scheduler, ready_message
from homenode.engine.step import WorkerLimits, merge_reports
from homenode.host.plan.neighbours import HostNeighbours
from homenode.host.refusals import named_refusals
from homenode.host.topology.finding import Finding
from homenode.model.checkpoint.index import OpenedCheckpoint, drafting_of
from homenode.model.checkpoint.vocabulary_file import read_vocabulary_text
from homenode.model.identity import ModelIdentity
from homenode.model.kv_cells import kv_cells
from homenode.model.part import ModelPart
from homenode.model.parts import read_layer_split

if TYPE_CHECKING:
    from homenode.engine.kv_disk.setup import KvDiskLink, KvDiskSetup
    from homenode.engine.kv_events.link import KvEventsLink
    from homenode.engine.kv_transfer.setup import KvTransferSetup
    from homenode.engine.scheduler.scheduler import Scheduler


@named_refusals("laying out the engine")
def build_engine(
    assignment: EngineAssignment,
    progress: Progress | None = None,
    lookahead: int = 1,
    own_process: bool = False,
    micro_batches: int = 0,
    experts: Sequence[int] = (),
    make_drafter: MakeDrafter | None = None,
) -> Engine:
    """Load the model and lay out everything. `progress` is told (bytes done, bytes in all) while weights are read.

    `own_process`: nothing else lives in this process, so that all its threads may be kept off the CPUs that compute.
    `micro_batches`: of an engine with several stages, see `scheduler.micro_batching`. `experts`: descriptors of memory
    for experts that several engines keep in common, one for each worker; they stay open as long as the engine. Without
    them every engine has all experts. `make_drafter`: of who drafts tokens.

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
    read_layer_split(config.parallel.layer_split)
    checkpoint = open_engine_model(config)
    if problem := vocabulary_problem(checkpoint, config):
        raise problem
    read_vocabulary_text(Path(str(config.model.vocabulary or config.model.path)), checkpoint.files)
    findings = told_of_settings(assignment, everybody, checkpoint)
    if replica is not None and replica.allowed:
        # the front, whose CPUs were inherited, may have moved to a few of them
        pin_process_threads(replica.allowed)
    machine = read_machine(config, devices)

    claim = CpuClaim(f"engine of {config.model_name}")
    with ExitStack() as undone:  # of what was opened when something fails
        undone.callback(claim.release)
        plan, told, neighbours = _planned(assignment, checkpoint, machine, common, claim)
        found = plan.problems()
        if found and (alone := without_spare_drafter(checkpoint, config)) is not None:
            left_out = heads_left_out(checkpoint, found[0].message)
            plan, told, neighbours = _planned(assignment, alone, machine, common, claim)
            found, told = plan.problems(), (*told, left_out)
        if found:
            raise found[0]
        layout = plan.worker_layout
        plan = replace(plan, worker_layout=replace(layout, findings=(*findings, *told, *layout.findings)))
        workers = _workers(plan, own_process)
        undone.callback(workers.close)
        engine = _started(plan, workers, claim, progress, lookahead, micro_batches, begin, make_drafter, undone)
        watch = watch_of(plan, replace(machine, neighbours=neighbours), claim, engine.executor, own_process)
        engine = replace(engine, watch=watch, move=move_of(plan, engine.executor, own_process))
        undone.pop_all()
        return engine


def _planned(
    assignment: EngineAssignment,
    checkpoint: OpenedCheckpoint,
    machine: MachineFacts,
    common: ExpertSharing | None,
    claim: CpuClaim,
) -> tuple[EnginePlan, tuple[Finding, ...], HostNeighbours]:
    """The plan beside all others of this host, what is to be told of its claim, and these others. One of several
    engines runs where its front has claimed CPUs for it.
    """
    if assignment.replica is not None:
        plan = plan_engine(assignment, checkpoint, machine, common)
        return _measured(plan, lambda: plan_engine(assignment, checkpoint, machine, common)), (), HostNeighbours()
    busy = busy_where_it_counts(assignment.config, machine.host)
    with open_claims(claim) as claims:
        beside = replace(machine, neighbours=HostNeighbours(claims.others, busy))
        plan = plan_engine(assignment, checkpoint, beside, common)
        claims.take(claim, claimed_cpus(plan))
    told = tuple(Finding("warning", "claims_not_kept", line) for line in claims.lines)
    return _measured(plan, lambda: plan_engine(assignment, checkpoint, beside, common)), told, beside.neighbours


def _measured(plan: EnginePlan, plan_again: Callable[[], EnginePlan]) -> EnginePlan:
    """The plan with what each worker may take of the memory that is free now, and what layers take on each device."""
    if plan.executor == "inline":
        return plan
    from homenode.engine.plan.workers import with_available_memory  # an inline engine starts sooner without
    from homenode.engine.runtime.calibration import calibrated

    plan = with_available_memory(plan)
    return with_available_memory(plan_again()) if calibrated(plan) else plan


def _workers(plan: EnginePlan, own_process: bool) -> EngineWorkers:
    """Return what computes the plan, not started yet."""
    if plan.executor == "inline":
        return InlineWorkers(plan, own_process)
    from homenode.engine.executor.launch import ProcessWorkers  # needs what starts processes

    if own_process and plan.worker_layout.loop:
        pin_process_threads(plan.worker_layout.loop)
    return ProcessWorkers(plan)


def _started(
    plan: EnginePlan,
    workers: EngineWorkers,
    claim: CpuClaim,
    progress: Progress | None,
    lookahead: int,
    micro_batches: int,
    begin: float,
    make_drafter: MakeDrafter | None,
    undone: ExitStack,
) -> Engine:
    """The engine of a plan and its workers. `begin`: when the start began, by `time.monotonic`. `undone`: gets what
    closes each part that holds descriptors.
    """
    fits = workers.start(progress)
    limits = _limits(plan, fits)
    identity = _identity(plan, fits)
    sharing = _sharing(plan, workers.backend, identity) if plan.config.transfer.on else None
    executor = count_expert_usage(workers.lay(limits, sharing), plan.config, plan.checkpoint.spec)
    hash_seed = sharing.hash_seed if sharing is not None else None
    disk = None
    if plan.config.disk.on:
        hash_seed, disk = _disk(plan, workers, executor, identity, hash_seed)
        undone.callback(disk.close, 0.0)
    stores: Sequence[BlockSource] = () if disk is None else (disk.source,)
    scheduler = make_scheduler(plan, executor.limits(), lookahead, micro_batches, hash_seed, stores, make_drafter)
    # Who forgets to release it gives it back with the executor.
    weakref.finalize(executor, claim.release).atexit = False
    findings = (*plan.worker_layout.findings, *workers.findings())
    ready = _ready(plan, executor, limits, fits, findings, time.monotonic() - begin)
    ready = msgspec.structs.replace(ready, identity=identity)
    kv_transfer = None
    if sharing is not None:
        kv_transfer = workers.hand_over(sharing)
        undone.callback(kv_transfer.close, 0.0)
        ready.details["kv_transfer"] = msgspec.to_builtins(kv_transfer.published)
    headroom = _headroom(plan) if limits.chunk_blocks else None
    events = _events(plan, scheduler, disk) if plan.config.kv_events.on else None
    if events is not None:
        undone.callback(events.close, 0.0)
        ready.details["kv_events"] = {str(plan.assignment.number): events.described}
    return Engine(scheduler, executor, ready, kv_transfer, disk, events, headroom, claim)


def _identity(plan: EnginePlan, fits: Sequence[Fits]) -> ModelIdentity | None:
    """Return the identity of the workers, which is one, with the texts that the engine itself has read."""
    found = next((fit.identity for fit in fits if fit.identity is not None), None)
    return found and msgspec.structs.replace(found, texts=found.texts | plan.checkpoint.files.texts)


def _limits(plan: EnginePlan, fits: Sequence[Fits]) -> WorkerLimits:
    """Return what the engine is laid out for: its workers' figures together, and what follows from the plan."""
    spec, geometry, told = plan.checkpoint.spec, plan.geometries[0], merge_reports(fits)
    memory = told["num_blocks"] * geometry.block_bytes
    enough = replace(plan.config, kv=replace(plan.config.kv, kv_cache_memory=memory))
    limits = resolve(enough, spec, replace(geometry, state=None), 2 * memory + _MANY)
    pages = state_pages(spec, _parts(plan), plan.geometries) if plan.config.transfer.on else 0
    chunk = chunk_of_parts(plan.geometries, told["num_blocks"]) if _grows(plan) else {}
    return msgspec.structs.replace(
        limits,
        **told,
        **chunk,
        state_interval=state_interval(plan.config, plan.whole_geometry),
        state_pages=pages,
        whole_pages=plan.config.transfer.on and (pages > 0 or kv_cells(spec) is not None),
        group_blocks=plan.group_blocks,
        max_drafted=plan.config.speculation.resolved().max_drafted if drafting_of(plan.checkpoint) is not None else 0,
    )


def _parts(plan: EnginePlan) -> list[ModelPart]:
    return [worker.part for worker in plan.worker_layout.workers]


def _grows(plan: EnginePlan) -> bool:
    """Return whether KV memory is taken when it is used."""
    return taken_whole_because(plan.config, [worker.device for worker in plan.worker_layout.workers]) is None


_MANY = 1 << 62  # bytes: that there is memory enough was looked at by each worker


def _sharing(plan: EnginePlan, backend: Backend, identity: ModelIdentity | None) -> KvTransferSetup:
    """Return what makes this engine's KV known to others, and KV memory that they can be given. `identity`: of the
    model that its workers have read.
    """
    from homenode.engine.kv_transfer.setup import KvTransferSetup  # needs the native core

    config, geometry = plan.config, replace(plan.whole_geometry, drafting=None)
    fingerprint = fingerprint_of(
        config.transfer,
        plan.checkpoint,
        geometry,
        plan.kept_as(backend),
        config.model.max_model_len,
        None if identity is None else identity.weights,
    ) | state_form(plan.checkpoint.spec, _parts(plan), plan.geometries)
    return KvTransferSetup(config.transfer, backend, plan.checkpoint.spec, geometry, fingerprint, config.net)


def _disk(
    plan: EnginePlan,
    workers: EngineWorkers,
    executor: Executor,
    identity: ModelIdentity | None,
    seed: bytes | None,
) -> tuple[bytes, KvDiskLink]:
    """The seed of the identities of this engine's blocks, and what keeps these on disk. `seed`: that other engines want
    for them, if any do.
    """
    from homenode.engine.kv_disk.kv_blocks import KvBlocks  # only who keeps KV on disk needs it

    setup = _disk_setup(plan, workers.backend, identity, seed)
    return setup.hash_seed, setup.open(
        KvBlocks(workers.kv_memories(), workers.state_memory), lambda: executor.pending > 0
    )


def _disk_setup(plan: EnginePlan, backend: Backend, identity: ModelIdentity | None, seed: bytes | None) -> KvDiskSetup:
    """Return what keeps this engine's KV on disk, by all that keys and values depend on. `seed`: see `_disk`."""
    from homenode.engine.kv_disk.setup import KvDiskSetup  # only who keeps KV on disk needs them
    from homenode.model.weights.content_digest import content_digest
    from homenode.model.weights.kept_digests import KeptDigests

    config, parallel = plan.config, plan.config.parallel
    weights = None if identity is None else identity.weights
    kept_as, longest = plan.kept_as(backend), config.model.max_model_len
    facts = facts_of_kv(plan.checkpoint, plan.whole_geometry, kept_as, longest, weights) | {
        "content": content_digest(plan.checkpoint, KeptDigests()) if config.disk.outlives else "",
        "figures": "" if identity is None else identity.figures,
        "ranks": str(parallel.tensor_parallel_size),
        "stages": ",".join(str(part.layers.end) for part in _parts(plan)),
        "instructions": str(backend.statistics()["level"]),
    }
    return KvDiskSetup(config, facts, plan.geometries[0].block_size, seed)


def _events(plan: EnginePlan, scheduler: Scheduler, disk: KvDiskLink | None) -> KvEventsLink:
    """What tells routers which blocks are held. HostError where its endpoints cannot be had."""
    from homenode.engine.kv_events.link import open_events  # only who publishes needs it

    settings, rank = plan.config.kv_events.settings, plan.assignment.number
    return open_events(settings, rank, scheduler.allocator, plan.checkpoint.spec, disk)


def _headroom(plan: EnginePlan) -> Callable[[], Headroom]:
    """Return what the nodes of all workers together can give, and this machine."""
    bindings = [worker.binding for worker in plan.worker_layout.workers]
    return headroom_of(tuple(dict.fromkeys(part for binding in bindings for part in memory_parts(binding))))


def _ready(
    plan: EnginePlan,
    executor: Executor,
    limits: WorkerLimits,
    fits: Sequence[Fits],
    findings: Sequence[Finding],
    seconds: float,
) -> EngineReady:
    layout = plan.worker_layout
    notes = dict.fromkeys(note for fit in fits for note in fit.notes)
    notes |= dict.fromkeys(finding.text for finding in filter(worth_telling, findings))
    return ready_message(
        plan,
        limits,
        seconds,
        notes=list(notes),
        weight_bytes=limits.weight_bytes,
        shared_weight_bytes=limits.shared_weight_bytes,
        kv_growth=_growth(plan, limits),
        compute=executor.statistics(),
        numa=next((worker.binding.numa for worker in layout.workers if worker.binding.numa), None),
        cpus=list(computing_cpus(layout)),
        cpu_sets=list(cpus_of_sets(layout)),
        neighbours=list(dict.fromkeys(finding.message for finding in findings if finding.code == NEIGHBOUR)),
        free_cpus=list(layout.loop),
        **({} if plan.executor == "inline" else {"stages": [_stage(worker) for worker in layout.workers]}),
    )


def _growth(plan: EnginePlan, limits: WorkerLimits) -> str:
    """See `growth_text`, of all workers together."""
    left = sum(plan.left(worker) or 0 for worker in plan.worker_layout.workers)
    devices = [worker.device for worker in plan.worker_layout.workers]
    if plan.executor == "inline":
        left -= step_bytes(plan.config, plan.checkpoint.spec)
    config = replace(plan.config, kv=replace(plan.config.kv, kv_cache_memory=plan.kv_memory))
    return growth_text(config, limits, plan.whole_geometry, left, devices)


def _stage(worker: WorkerPlan) -> dict[str, Any]:
    part, binding = worker.part, worker.binding
    layers = [part.layers.first, part.layers.end - 1]
    return {
        "worker": worker.number,
        "stage": part.stage,
        "rank": part.rank,
        "device": worker.device,
        "layers": layers,
        "cpus": list(binding.team),
        "numa": binding.numa,
    }
