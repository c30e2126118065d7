"""The workers of a plan, behind one executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from homenode.compute.kv_memory import KvLayout
from homenode.compute.ops import Backend, StateMemory
from homenode.engine.backend import make_backend
from homenode.engine.channels.base import Channels, MakeChannels
from homenode.engine.channels.messages import FileRange, Fits
from homenode.engine.executor.base import LoadProgress
from homenode.engine.executor.join import join_of
from homenode.engine.executor.kv_file import KvFile, joined
from homenode.engine.executor.processes import ProcessExecutor
from homenode.engine.executor.worker_process import PROGRAM
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.worker_layout import WorkerPlan
from homenode.engine.step import WorkerLimits
from homenode.errors import InternalError
from homenode.host.topology.finding import Finding
from homenode.model.kv_cells import kv_cells
from homenode.model.spec import ModelSpec

if TYPE_CHECKING:
    from homenode.compute.kv_memory import KvMemory
    from homenode.engine.kv_transfer.setup import KvTransferLink, KvTransferSetup


class ProcessWorkers:
    """`EngineWorkers` of a plan whose workers are processes, of this host or of a Ray cluster."""

    def __init__(self, plan: EnginePlan) -> None:
        self._plan, self._executor = plan, make_executor(plan)
        self._file: KvFile | None = None

    @property
    def backend(self) -> Backend:
        """One of the engine's process itself, which computes nothing: it maps the workers' memory."""
        return make_backend(self._plan.config.compute, (UNPINNED,))

    def start(self, progress: LoadProgress | None = None) -> Sequence[Fits]:
        """See `EngineWorkers.start`."""
        return self._executor.start(progress)

    def lay(self, limits: WorkerLimits, sharing: KvTransferSetup | None = None) -> ProcessExecutor:
        """See `EngineWorkers.lay`. KV memory that others read and write is a file that all workers have a part of."""
        if sharing is not None or self._plan.config.disk.on:
            self._file = KvFile(self._plan.geometries, limits.num_blocks)
        self._executor.lay(limits, self._file)
        return self._executor

    def findings(self) -> tuple[Finding, ...]:
        """See `EngineWorkers.findings`; workers tell theirs when they start."""
        return ()

    @property
    def state_memory(self) -> StateMemory:
        """See `EngineWorkers.state_memory`."""
        return None

    def kv_memories(self) -> Sequence[KvMemory]:
        """See `EngineWorkers.kv_memories`."""
        from homenode.compute.native import NativeBackend

        file, backend, workers = self._file, self.backend, self._plan.worker_layout.workers
        assert file is not None and isinstance(backend, NativeBackend)  # `lay`, and `kv_disk.checks`
        layouts, cells = self._executor.kv_layouts(), kv_cells(self._plan.checkpoint.spec)
        if cells is None:  # each worker's own, so that a head that several have is there for all of them
            layouts = [_in_file(layout, share) for layout, share in zip(layouts, file.shares, strict=True)]
        else:
            layouts = [joined([worker.part for worker in workers], layouts, file.shares, cells)]
        return [backend.map_kv(file.fd, layout, writable=True, own=True) for layout in layouts]

    def hand_over(self, sharing: KvTransferSetup) -> KvTransferLink:
        """See `EngineWorkers.hand_over`."""
        file, executor = self._file, self._executor
        if file is None:
            raise InternalError("the KV memory of these workers was not laid into a file")
        parts = [worker.part for worker in self._plan.worker_layout.workers]
        layout = joined(parts, executor.kv_layouts(), file.shares, kv_cells(self._plan.checkpoint.spec))
        return sharing.hand_over_file(file.fd, layout, executor)

    def close(self) -> None:
        """See `EngineWorkers.close`."""
        self._executor.close()


def _in_file(layout: KvLayout, share: FileRange) -> KvLayout:
    """Return how a worker's KV memory lies in the file, by how it lies in its share."""
    regions = tuple(msgspec.structs.replace(region, offset=share.offset + region.offset) for region in layout.regions)
    return msgspec.structs.replace(layout, regions=regions, nbytes=share.offset + share.nbytes)


def make_executor(
    planned: EnginePlan, make_channels: MakeChannels | None = None, program: str = PROGRAM
) -> ProcessExecutor:
    """The workers of a plan, not started yet. `make_channels` and `program`: what they have in place of shared memory,
    and run.
    """
    config, layout, common = planned.config, planned.worker_layout, planned.common

    def memories_of(worker: WorkerPlan) -> Sequence[int]:
        return () if common is None or not common.memories else (common.memories[worker.number],)

    def shared(generation: int) -> Channels:
        from homenode.engine.channels.shared import SharedChannels  # maps memory by the native core

        return SharedChannels(
            layout.workers, planned.checkpoint.spec.handed_columns, config.scheduler.max_num_batched_tokens
        )

    if config.parallel.executor == "ray" and make_channels is None:
        return _on_ray(planned)
    return ProcessExecutor(
        layout.workers,
        lambda worker: join_of(planned, worker),
        make_channels or shared,
        config.parallel.worker_timeout,
        program,
        experts=_counted(planned),
        memories_of=memories_of,
        exports_kv=config.transfer.on or config.disk.on,
        model=str(config.model.path),
    )


def _on_ray(planned: EnginePlan) -> ProcessExecutor:
    from homenode.engine.channels.tcp import TcpChannels
    from homenode.engine.executor.ray import RayLauncher  # needs an extra

    workers, parallel = planned.worker_layout.workers, planned.config.parallel
    launcher = RayLauncher(workers, parallel, planned.config.net, planned.replica)

    def channels(generation: int) -> Channels:
        return TcpChannels(workers, generation, launcher.rendezvous.forget)

    return ProcessExecutor(
        workers,
        lambda worker: join_of(planned, worker),
        channels,
        parallel.worker_timeout,
        launch=launcher,
        on_end=launcher.close,
        experts=_counted(planned),
        model=str(planned.config.model.path),
    )


def _counted(planned: EnginePlan) -> ModelSpec | None:
    """The model, if it has experts."""
    return planned.checkpoint.spec if planned.checkpoint.spec.moe else None
