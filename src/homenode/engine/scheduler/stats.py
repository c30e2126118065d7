"""The scheduler's books: what there is to count, and whether all of it adds up."""

from __future__ import annotations

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.messages import EngineStats
from homenode.engine.scheduler.counters import SchedulerCounters
from homenode.engine.scheduler.growth import Growth, GrowthStats
from homenode.engine.scheduler.kv_coordinator import KvCoordinator
from homenode.engine.scheduler.planner import Planner
from homenode.engine.scheduler.request_table import RequestTable
from homenode.errors import InternalError
from homenode.units import format_count


class SchedulerStats:
    """Looks at what the others keep, and changes nothing."""

    def __init__(
        self,
        planner: Planner,
        residents: KvAllocator,
        handover: KvCoordinator,
        live: RequestTable,
        tally: SchedulerCounters,
        growth: Growth | None = None,
    ) -> None:
        self._planner = planner
        self._residents = residents
        self._handover = handover
        self._live = live
        self._tally = tally
        self._growth = growth

    def statistics(self) -> EngineStats:
        """Counters since the start and gauges of now."""
        tally = self._tally
        growth = GrowthStats() if self._growth is None else self._growth.figures()
        return EngineStats(
            num_running=len(self._planner.running),
            num_waiting=self._planner.num_waiting,
            waiting_for_kv=len(self._planner.aside),
            handed_tokens=tally.handed_tokens,
            recomputed_tokens=tally.recomputed_tokens,
            kv_usage=self._residents.usage,
            prefix_queries=tally.prefix_queries,
            prefix_hits=tally.prefix_hits,
            preemptions=tally.preemptions,
            prompt_tokens=tally.prompt_tokens,
            generation_tokens=tally.generation_tokens,
            steps=tally.steps,
            step_tokens=tally.step_tokens,
            rejected=dict(tally.rejected),
            kv_released_bytes=growth.released,
            kv_growths_refused=growth.refused,
        )

    def audit(self) -> None:
        """Every KV block is free, cached or owned, and every live request runs or waits. InternalError if not. O(blocks)."""
        pool = self._residents.pool
        staying = [s.residency for s in self._planner.running if s.residency]
        tables = [residency.blocks for residency in (*staying, *self._residents.leaving())]
        pool.audit(map(pool.own, [*tables, *self._handover.tables()]))
        if any(
            len(pool.own(residency.blocks)) < len(residency.blocks) and not residency.placed for residency in staying
        ):
            raise InternalError(
                "a request reads another engine's KV blocks under no ticket", statistics=self.statistics()
            )
        if len(self._live) != len(self._planner.running) + self._planner.num_waiting:
            raise InternalError(
                f"{format_count(len(self._live), 'live request')}, but not as many running and waiting",
                statistics=self.statistics(),
            )
