"""Turns the plan of a step into the step that the workers are sent, and notes it as in flight."""

from __future__ import annotations

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.scheduler.budget import StepPlan
from homenode.engine.scheduler.pending_steps import PendingStep, PendingSteps
from homenode.engine.step import StartSequence, Step, StepItem


class StepBuilder:
    """Says of each sequence what the workers do not know of it yet. `number`: of the step that is next."""

    def __init__(self, residents: KvAllocator, flights: PendingSteps) -> None:
        self.number = 0
        self._residents = residents
        self._flights = flights

    def send(self, plan: StepPlan) -> Step:
        """The step of a plan that is not empty, in flight from now on."""
        starts: list[StartSequence] = []
        parts = []
        for sequence, residency, count in plan.parts:
            if not residency.started:
                residency.started = True
                starts.append(
                    StartSequence(residency.seq, sequence.tokens.copy(), sequence.num_prompt, sequence.params)
                )
            parts.append((sequence, residency, self._part(sequence, residency, count)))
        items = [*plan.decodes, *[item for _, _, item in parts]] if parts else plan.decodes
        step = Step(plan.number, self._residents.ends, starts, items)
        self._residents.ends = []
        self.number += 1
        self._flights.add(PendingStep(step, plan.decoding, plan.residencies, parts, plan.prefill))
        return step

    def _part(self, sequence: Sequence, residency: BlockAllocation, count: int) -> StepItem:
        start, end = residency.scheduled, residency.scheduled + count
        first_scored = max(start, residency.score_base)
        known = residency.sent_blocks
        residency.sent_blocks = self._residents.blocks_for(end)
        residency.scheduled = end
        residency.last_step = self.number
        return StepItem(
            seq=residency.seq,
            start=start,
            count=count,
            new_blocks=residency.blocks[known : residency.sent_blocks],
            sample=sequence.samples and end >= residency.goal,
            score_from=first_scored if first_scored < min(end, sequence.num_prompt - 1) else -1,
        )
