"""The one worker of an engine that computes in its own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from homenode.compute.ops import Backend, PlacedBackend, StateMemory
from homenode.engine.channels.base import WorkerChannels
from homenode.engine.channels.messages import Fits
from homenode.engine.executor.base import LoadProgress
from homenode.engine.executor.inline import InlineExecutor
from homenode.engine.executor.join import join_of
from homenode.engine.kv.chunks import PageChange
from homenode.engine.memory.available import MemoryBudget
from homenode.engine.memory.huge_pages import on_small_pages
from homenode.engine.memory.numa import leave_plan, settle_pages
from homenode.engine.memory.report import log_memory
from homenode.engine.plan.engine_plan import EnginePlan
from homenode.engine.step import WorkerLimits
from homenode.engine.worker.load import InsideEngine
from homenode.engine.worker.worker import PartWorker
from homenode.errors import UserError
from homenode.host.bind.memory.huge_pages import disabled_for_this_process
from homenode.host.topology.finding import Finding
from homenode.start_phases import mark_phase

if TYPE_CHECKING:
    from homenode.compute.kv_memory import KvMemory
    from homenode.engine.kv_transfer.setup import KvTransferLink, KvTransferSetup


class InlineWorkers:
    """`EngineWorkers` of a plan whose worker is a thread of this process."""

    def __init__(self, plan: EnginePlan, owns_process: bool) -> None:
        """`owns_process`: nothing but the engine lives in this process."""
        (layout,), (planned,) = plan.weights, plan.worker_layout.workers
        inside = InsideEngine(plan.checkpoint, plan.host, layout, owns_process)
        self._plan, self._planned, self._inside = plan, planned, inside
        self._worker = PartWorker(join_of(plan, planned), inside)
        self._executor: InlineExecutor | None = None

    @property
    def backend(self) -> Backend:
        """Return what computes; once it was started."""
        return self._worker.loaded.backend

    def start(self, progress: LoadProgress | None = None) -> Sequence[Fits]:
        """See `EngineWorkers.start`."""
        common, planned = self._plan.common, self._planned
        experts = None if common is None else common.memories.get(planned.number)
        try:
            return [self._worker.load(progress or _drop, experts)]
        except UserError as error:
            own = self._plan.kept(planned).own
            raise self._plan.with_nodes_named(
                error, MemoryBudget(planned.memory or 0, planned.memory_nodes), own
            ) from None

    def lay(self, limits: WorkerLimits, sharing: KvTransferSetup | None = None) -> InlineExecutor:
        """See `EngineWorkers.lay`."""
        worker, native = self._worker, self._plan.config.compute.backend == "native"
        grows = limits.chunk_blocks > 0
        make_cache = None if sharing is None else sharing.kv_cache
        worker.lay(limits.num_blocks, grows=grows, state_slots=limits.state_slots, make_cache=make_cache)
        worker.prepare(WorkerChannels())
        mark_phase("KV memory and buffers")
        self._executor = InlineExecutor(
            worker.runner,
            limits,
            lambda: worker.statistics(plain=False),
            # The thread of the steps is the first of the team while it computes; staying there it is not moved about
            # between two steps.
            cpus=self._planned.binding.places[0] if native else (),
            change_pages=self._change_pages if grows else None,
            move=worker.move if native else None,
            prepare_grammar=worker.prepare_grammar,
        )
        return self._executor

    def findings(self) -> tuple[Finding, ...]:
        """See `EngineWorkers.findings`: pages that are not where they belong are brought there before."""
        backend, binding, host = self.backend, self._worker.loaded.binding, self._plan.host
        found: tuple[Finding, ...] = ()
        if isinstance(backend, PlacedBackend):
            found = settle_pages(backend, binding, host)
            log_memory(backend, binding, host)
            if self._inside.owns_process:
                leave_plan(binding, backend.planned())
        return found + on_small_pages(backend.statistics(), host.transparent_huge_pages, disabled_for_this_process())

    @property
    def state_memory(self) -> StateMemory:
        """See `EngineWorkers.state_memory`."""
        return self._worker.state

    def kv_memories(self) -> Sequence[KvMemory]:
        """See `EngineWorkers.kv_memories`."""
        from homenode.compute.native import NativeBackend

        backend = self.backend
        assert isinstance(backend, NativeBackend)  # `kv_disk.checks` has seen to it
        return [backend.kv_memory(each) for each in backend.caches_of(self._worker.cache)]

    def hand_over(self, sharing: KvTransferSetup) -> KvTransferLink:
        """See `EngineWorkers.hand_over`."""
        return sharing.hand_over(self._worker.cache)

    def close(self) -> None:
        """See `EngineWorkers.close`."""
        if self._executor is not None:
            self._executor.close()

    def _change_pages(self, changes: Sequence[PageChange]) -> None:
        self._worker.change_pages([(each.first, each.past, bool(each.presence)) for each in changes])


def _drop(done: int, total: int) -> None:
    """Nobody asks how far loading is."""
