"""Puts an engine of several workers together: the plan, the workers, and the scheduler over them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from homenode.engine.backend import make_backend
from homenode.engine.channels.messages import Fits
from homenode.engine.executor.base import Executor
from homenode.engine.executor.expert_usage import count_expert_usage
from homenode.engine.executor.kv_file import KvFile, joined
from homenode.engine.executor.launch import make_executor
from homenode.engine.memory.growth import taken_whole_because
from homenode.engine.memory.headroom import Headroom, headroom_of, memory_parts
from homenode.engine.memory.sizing import Sizes, chunk_of_parts, growth_text, resolve
from homenode.engine.memory.state_sizing import state_interval
from homenode.engine.messages import EngineReady
from homenode.engine.pinning import pin_current_thread
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.layout import WorkerPlan
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.workers import with_available_memory
from homenode.engine.runtime.calibration import calibrated
from homenode.engine.runtime.engine import Engine, Progress, make_scheduler, ready_message
from homenode.host.topology.finding import Finding
from homenode.transfer.fingerprint import fingerprint_of

if TYPE_CHECKING:
    from homenode.engine.kv_transfer.setup import KvTransferSetup


def build_engine_of_workers(
    plan: EnginePlan,
    plan_again: Callable[[], EnginePlan],
    findings: Sequence[Finding],
    progress: Progress | None,
    lookahead: int,
    own_process: bool,
    micro_batches: int,
    begin: float,
) -> Engine:
    """`build.build_engine` for a plan with workers. `plan_again`: makes the plan with what was measured meanwhile.
    `findings`: to be told with those of its layout. `begin`: when the start began, by `time.monotonic`. Raises what
    `build_engine` raises, and what a worker could not start for, under its own name.
    """
    planned = with_available_memory(plan)
    if calibrated(planned):
        planned = with_available_memory(plan_again())
    planned = replace(planned, layout=replace(planned.layout, findings=(*findings, *planned.layout.findings)))
    if found := planned.problems():
        raise found[0]
    if own_process and planned.layout.loop:
        pin_current_thread(planned.layout.loop)
    workers = make_executor(planned)
    executor = count_expert_usage(workers, planned.config, planned.checkpoint.spec)
    try:
        fits = workers.start(progress)
        sizes = _sizes(planned, fits)
        file = KvFile(planned.geometries, sizes.num_blocks) if planned.config.transfer.on else None
        workers.lay(sizes.worker_limits(), file)
        sharing = _sharing(planned) if file is not None else None
        engine = _engine(planned, executor, sizes, fits, lookahead, micro_batches, time.monotonic() - begin, sharing)
        if sharing is None or file is None:
            return engine
        parts = [worker.part for worker in planned.layout.workers]
        kv_transfer = sharing.hand_over_file(file.fd, joined(parts, workers.kv_layouts(), file.shares), workers)
        engine.ready.details["kv_transfer"] = msgspec.to_builtins(kv_transfer.published)
        return replace(engine, kv_transfer=kv_transfer)
    except BaseException:
        executor.close()
        raise


def _sizes(planned: EnginePlan, fits: Sequence[Fits]) -> Sizes:
    """What the engine is laid out for: the fewest blocks over all workers."""
    spec, geometry = planned.checkpoint.spec, planned.geometries[0]
    blocks = min(fit.num_blocks for fit in fits)
    enough = replace(planned.config, kv=replace(planned.config.kv, kv_cache_memory=blocks * geometry.block_bytes))
    sizes = resolve(enough, spec, replace(geometry, state=None), 2 * blocks * geometry.block_bytes + _MANY)
    slots = min((fit.state_slots for fit in fits if fit.state_slots), default=0)
    interval = state_interval(planned.config, planned.whole_geometry)
    sizes = replace(sizes, num_blocks=blocks, state_slots=slots, state_interval=interval)
    return replace(sizes, **chunk_of_parts(planned.geometries, blocks)) if _grows(planned) else sizes


def _grows(planned: EnginePlan) -> bool:
    """Whether KV memory is taken when it is used."""
    return taken_whole_because(planned.config, [worker.device for worker in planned.layout.workers]) is None


_MANY = 1 << 62  # bytes: that there is memory enough was looked at by each worker


def _sharing(planned: EnginePlan) -> KvTransferSetup:
    """What makes this engine's KV known to others."""
    from homenode.engine.kv_transfer.setup import KvTransferSetup  # needs the native core

    config, geometry, backend = (
        planned.config,
        planned.whole_geometry,
        make_backend(planned.config.compute, (UNPINNED,)),
    )
    fingerprint = fingerprint_of(
        config.transfer, planned.checkpoint, geometry, planned.kept_as(backend), config.model.max_model_len
    )
    return KvTransferSetup(config.transfer, backend, geometry, fingerprint)


def _engine(
    planned: EnginePlan,
    executor: Executor,
    sizes: Sizes,
    fits: Sequence[Fits],
    lookahead: int,
    micro_batches: int,
    seconds: float,
    sharing: KvTransferSetup | None = None,
) -> Engine:
    hash_seed = sharing.hash_seed if sharing is not None else None
    scheduler = make_scheduler(planned, executor.limits(), lookahead, micro_batches, hash_seed)
    ready = _ready(planned, executor, sizes, fits, seconds)
    return Engine(scheduler, executor, ready, headroom=_headroom(planned) if sizes.chunk_blocks else None)


def _headroom(planned: EnginePlan) -> Callable[[], Headroom]:
    """What the nodes of all workers together can give, and this machine."""
    bindings = [worker.binding for worker in planned.layout.workers]
    return headroom_of(tuple(dict.fromkeys(part for binding in bindings for part in memory_parts(binding))))


def _ready(planned: EnginePlan, executor: Executor, sizes: Sizes, fits: Sequence[Fits], seconds: float) -> EngineReady:
    layout = planned.layout
    notes = dict.fromkeys(note for fit in fits for note in fit.notes)
    notes |= dict.fromkeys(finding.text for finding in layout.findings if finding.severity != "info")
    return ready_message(
        planned,
        sizes,
        seconds,
        notes=list(notes),
        weight_bytes=sum(fit.weight_bytes for fit in fits),
        shared_weight_bytes=sum(fit.shared_weight_bytes for fit in fits),
        kv_growth=_growth(planned, sizes),
        compute=executor.statistics(),
        numa=next((worker.binding.numa for worker in layout.workers if worker.binding.numa), None),
        free_cpus=list(layout.loop),
        stages=[_stage(worker) for worker in layout.workers],
    )


def _growth(planned: EnginePlan, sizes: Sizes) -> str:
    """See `growth_text`, of all workers together."""
    left = sum(planned.left(worker) or 0 for worker in planned.layout.workers)
    devices = [worker.device for worker in planned.layout.workers]
    return growth_text(planned.config, sizes, planned.whole_geometry, left, devices)


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
