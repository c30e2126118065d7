"""The scheduler's books: what there is to count, and whether all of it adds up."""

from __future__ import annotations

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.messages import EngineStats, RequestList, StateStats
from homenode.engine.scheduler.counters import SchedulerCounters
from homenode.engine.scheduler.growth import Growth, GrowthStats
from homenode.engine.scheduler.kv_coordinator import KvCoordinator
from homenode.engine.scheduler.request_rows import list_requests
from homenode.engine.scheduler.request_table import RequestTable
from homenode.engine.scheduler.sequence_lists import SequenceLists
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.errors import InternalError
from homenode.units import format_count


class SchedulerStats:
    """Looks at what the others keep, and changes nothing."""

    def __init__(
        self,
        lists: SequenceLists,
        allocator: KvAllocator,
        coordinator: KvCoordinator,
        requests: RequestTable,
        counters: SchedulerCounters,
        costs: StepCosts,
        growth: Growth | None = None,
    ) -> None:
        self._lists = lists
        self._allocator = allocator
        self._coordinator = coordinator
        self._requests = requests
        self._counters = counters
        self._costs = costs
        self._growth = growth

    def statistics(self) -> EngineStats:
        """Counters since the start and gauges of now."""
        counters = self._counters
        growth = GrowthStats() if self._growth is None else self._growth.stats()
        return EngineStats(
            num_running=len(self._lists.running),
            num_waiting=self._lists.num_waiting,
            waiting_for=self._lists.waiting_for,
            waiting_for_kv=len(self._lists.waiting_for_kv),
            handed_tokens=counters.handed_tokens,
            recomputed_tokens=counters.recomputed_tokens,
            kv_usage=self._allocator.usage,
            prefix_queries=counters.prefix_queries,
            prefix_hits=counters.prefix_hits,
            preemptions=counters.preemptions,
            prompt_tokens=counters.prompt_tokens,
            generation_tokens=counters.generation_tokens,
            drafted_tokens=counters.drafted_tokens,
            accepted_tokens=counters.accepted_tokens,
            accepted_by_position=counters.accepted_by_position.copy(),
            steps=counters.steps,
            step_tokens=counters.step_tokens,
            step_sizes=counters.step_sizes.figures(),
            rejected=dict(counters.rejected),
            step_times=counters.step_times.figures(),
            step_errors={str(kind): error for kind, error in self._costs.errors.items()},
            kv_released_bytes=growth.released,
            kv_growths_refused=growth.refused,
            states=self._of_states(),
        )

    def requests(self, number: int, most: int, now: float) -> RequestList:
        """The requests one by one: see `list_requests`."""
        return list_requests(self._lists, number, most, now)

    def _of_states(self) -> StateStats | None:
        """Return figures of the state memory, of a model with one."""
        if (states := self._allocator.states) is None:
            return None
        return StateStats(states.num_slots, states.num_owned, states.num_snapshots, states.hits, states.uncovered)

    def audit(self) -> None:
        """Every KV block is free, cached or owned, and every live request runs or waits. InternalError if not.
        O(blocks).
        """
        pool = self._allocator.pool
        staying = [s.allocation for s in self._lists.running if s.allocation]
        tables = [each.blocks + each.state_pages for each in (*staying, *self._allocator.leaving())]
        pool.audit(map(pool.own, [*tables, *self._coordinator.tables()]))
        if (states := self._allocator.states) is not None:
            states.audit([stay.state for stay in (*staying, *self._allocator.leaving()) if stay.state], pool.digests)
        if any(
            len(pool.own(allocation.blocks)) < len(allocation.blocks) and not allocation.placed
            for allocation in staying
        ):
            raise InternalError(
                "a request reads another engine's KV blocks under no ticket", statistics=self.statistics()
            )
        if len(self._requests) != len(self._lists.running) + self._lists.num_waiting:
            raise InternalError(
                f"{format_count(len(self._requests), 'requests request')}, but not as many running and waiting",
                statistics=self.statistics(),
            )
