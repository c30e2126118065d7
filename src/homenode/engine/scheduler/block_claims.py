"""Blocks and memory for what a step computes next: where there are none, somebody gives way."""

from __future__ import annotations

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.imports import KvImports
from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.scheduler.counters import SchedulerCounters
from homenode.engine.scheduler.order.preemption import choose_victim, growth_preemption_warning, preemption_warning
from homenode.engine.scheduler.sequence_lists import SequenceLists
from homenode.engine.scheduler.steps.budget import StepPlan


class BlockClaims:
    """Claims of sequences that run or are to, while a step is planned. Who gives way goes back to the queue at once."""

    def __init__(
        self,
        lists: SequenceLists,
        allocator: KvAllocator,
        kv_imports: KvImports,
        counters: SchedulerCounters,
        max_preemptions: int,
    ) -> None:
        """`max_preemptions`: of one sequence, for the sake of others than the first in order."""
        self._lists, self._allocator, self._kv_imports = lists, allocator, kv_imports
        self._counters, self._max_preemptions = counters, max_preemptions

    def secure_block(self, sequence: Sequence, allocation: BlockAllocation, plan: StepPlan) -> bool:
        """See that the next position has a block, preempting others if it must. False: the sequence is not part of this
        step.
        """
        while not self._allocator.grow(allocation):
            plan.short = True
            if self._num_returning() > plan.claims:
                plan.claims += 1
                return False
            victim = choose_victim(
                sequence,
                self._victims(sequence),
                self._lists.running[0],
                self._max_preemptions,
                self._allocator.recompute_cost,
            )
            if victim is None:
                if sequence is self._lists.running[0] and self._take_from_ready():
                    continue
                return False
            self._preempt(victim, sequence)
            if victim is sequence:
                return False
        return True

    def secure_memory(self, sequence: Sequence, allocation: BlockAllocation, count: int, plan: StepPlan) -> bool:
        """See that the next positions of a prompt have memory. False: the machine has none, and the sequence waits
        until there is some in the blocks that others give back. Nobody else gives way: what it has computed stays in
        the prefix cache, and the memory there is in use.
        """
        if self._allocator.secure(allocation, count):
            return True
        plan.short = True
        self._send_back(sequence)
        self._lists.warnings.append(growth_preemption_warning(sequence, self._counters.preemptions))
        return False

    def _victims(self, needy: Sequence) -> list[Sequence]:
        """Return who may give way: among several keys those that had more, else none that had less; all for the sake of
        the first in order.
        """
        if not self._lists.shares.several or needy is self._lists.running[0]:
            return self._lists.running
        key, ahead = needy.request.key, self._lists.shares.ahead
        return [s for s in self._lists.running if ahead(key, s.request.key)] or [
            s for s in self._lists.running if not ahead(s.request.key, key)
        ]

    def _take_from_ready(self) -> bool:
        """The first in order always advances: those who hold blocks without running give way. False: what they hold
        comes back later, if at all.

        Nobody writes to the blocks of a ready one, and those of a reservation come back when the agent says so. All
        others are bound to requests that wait for the rest of their KV: the agent ends that wait in bounded time, and
        then they are ready.
        """
        sequence = self._kv_imports.give_way()
        if sequence is None:
            return self._kv_imports.give_up_newest()
        self._lists.waiting.push(sequence)
        self._lists.let_followers_go()
        return True

    def _num_returning(self) -> int:
        """Blocks that come back with the steps in flight: of sequences that ended, and of those whose last token is
        being drawn.
        """
        last = (s.allocation for s in self._lists.running if s.pending and s.exhausted)
        return self._allocator.num_returning() + sum(self._allocator.num_exclusive(r) for r in last if r)

    def _preempt(self, victim: Sequence, needy: Sequence) -> None:
        cost = self._allocator.recompute_cost(victim)
        self._send_back(victim)
        num_blocks = self._allocator.pool.num_blocks
        self._lists.warnings.append(preemption_warning(victim, needy, num_blocks, cost, self._counters.preemptions))

    def _send_back(self, victim: Sequence) -> None:
        self._lists.requeue(victim)
        victim.preemptions += 1
        self._counters.preemptions += 1
