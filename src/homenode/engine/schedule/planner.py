"""Fills one step: running sequences before waiting ones, decodes before prefills, and room made by preemption when blocks run out."""

from __future__ import annotations

import bisect

from homenode.engine.schedule.budget import StepPlan, prefill_count
from homenode.engine.schedule.config import SchedulerConfig
from homenode.engine.schedule.policy import choose_victim, preemption_warning
from homenode.engine.schedule.queue import WaitingQueue
from homenode.engine.schedule.residents import Residents
from homenode.engine.schedule.sequence import Residency, Sequence
from homenode.engine.schedule.tally import Tally


class Planner:
    """Moves sequences between the waiting queue and the running list, which is kept in order of priority and arrival."""

    def __init__(self, config: SchedulerConfig, max_rows: int, residents: Residents, tally: Tally) -> None:
        self._config = config
        self._max_rows = max_rows
        self._residents = residents
        self._tally = tally
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue()
        self.warnings: list[str] = []  # about preemptions; the scheduler passes them on

    def plan(self) -> StepPlan:
        """Choose what the next step computes. Sequences that are admitted or preempted on the way change places at once."""
        plan = StepPlan(self._config.max_num_batched_tokens, self._max_rows)
        for sequence in self.running[:]:  # a copy: preemption takes sequences out while we go
            residency = sequence.residency
            if residency and residency.decoding and not sequence.exhausted and self._secure_block(sequence, residency, plan):
                plan.add(sequence, residency, 1)
        for sequence in self.running:
            residency = sequence.residency
            if residency and not residency.decoding:
                count = self._prefill_count(sequence, residency, plan)
                if count > 0:
                    plan.add(sequence, residency, count)
        if not plan.short:
            self._admit(plan)
        return plan

    def stop(self, sequence: Sequence) -> None:
        """Take a sequence out of the running list or the queue, wherever it is, and end its stay on the worker."""
        if sequence.residency:
            self.running.remove(sequence)
            self._residents.end(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def requeue(self, sequence: Sequence) -> None:
        """Send a running sequence back to its place in the queue; all its tokens will be computed again."""
        self.stop(sequence)
        self.waiting.push(sequence)

    def _prefill_count(self, sequence: Sequence, residency: Residency, plan: StepPlan) -> int:
        config = self._config
        return prefill_count(sequence, residency, plan, max_tokens=config.max_num_batched_tokens, chunked=config.enable_chunked_prefill)

    def _admit(self, plan: StepPlan) -> None:
        """Start waiting sequences, strictly in order: one that does not fit yet is not overtaken, or a long prompt might wait for ever."""
        while len(self.running) < self._config.max_num_seqs and plan.tokens_left > 0:
            sequence = self.waiting.first()
            # One that was preempted from a step in flight is to start again with the token that step draws, or it would be drawn twice.
            if sequence is None or sequence.in_flight:
                return
            proposal = self._residents.propose(sequence)
            count = self._prefill_count(sequence, proposal, plan)
            # Room for the others to grow into: without it a newcomer takes the last block and is preempted at the next block boundary.
            spare = max(1, self._residents.pool.num_blocks // 100) if self.running else 0
            if count <= 0 or not self._residents.admit(sequence, proposal, spare):
                return
            self.waiting.remove(sequence)
            bisect.insort(self.running, sequence, key=lambda s: s.order)
            self._count_admission(sequence, proposal)
            plan.add(sequence, proposal, count)

    def _count_admission(self, sequence: Sequence, residency: Residency) -> None:
        if sequence.admitted:
            return
        sequence.admitted = True
        if not sequence.scoring and self._residents.cache.enabled:
            sequence.cached_tokens = residency.scheduled
            self._tally.prefix_queries += sequence.num_prompt
            self._tally.prefix_hits += residency.scheduled

    def _secure_block(self, sequence: Sequence, residency: Residency, plan: StepPlan) -> bool:
        """See that the next position has a block, preempting others if it must. False: the sequence is not part of this step."""
        while not self._residents.grow(residency):
            plan.short = True
            if self._num_returning() > plan.claims:
                plan.claims += 1
                return False
            victim = choose_victim(sequence, self.running, self.running[0], self._config.max_preemptions, self._residents.recompute_cost)
            if victim is None:
                return False
            self._preempt(victim, sequence, plan)
            if victim is sequence:
                return False
        return True

    def _num_returning(self) -> int:
        """Blocks that come back with the steps in flight: of sequences that ended, and of those whose last token is being drawn."""
        last = (s.residency for s in self.running if s.pending and s.exhausted)
        return self._residents.num_returning() + sum(self._residents.pool.num_exclusive(r.blocks) for r in last if r)

    def _preempt(self, victim: Sequence, needy: Sequence, plan: StepPlan) -> None:
        assert victim.residency is not None  # it runs
        cost = self._residents.recompute_cost(victim)
        plan.drop(victim.residency)
        self.requeue(victim)
        victim.preemptions += 1
        self._tally.preemptions += 1
        num_blocks = self._residents.pool.num_blocks
        self.warnings.append(preemption_warning(victim, needy, num_blocks, cost, self._tally.preemptions))
