"""Turns the plan of a step into the step that the workers are sent, and notes it as in flight."""

from __future__ import annotations

from homenode.engine.inputs import grids_of, rows_between, spans_of
from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.scheduler.drafts.drafter import Drafter
from homenode.engine.scheduler.steps.budget import StepPlan
from homenode.engine.scheduler.steps.pending_steps import PendingStep, PendingSteps
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.step import StartSequence, Step, StepItem


class StepBuilder:
    """Says of each sequence what the workers do not know of it yet. `number`: of the step that is next."""

    def __init__(
        self, allocator: KvAllocator, pending: PendingSteps, costs: StepCosts, drafter: Drafter | None = None
    ) -> None:
        self.number = 0
        self._drafter = drafter
        self._costs = costs
        self._allocator = allocator
        self._pending_steps = pending

    def send(self, plan: StepPlan) -> Step:
        """The step of a plan that is not empty, in flight from now on."""
        starts: list[StartSequence] = []
        parts = []
        for sequence, allocation, count in plan.parts:
            if not allocation.started:
                allocation.started = True
                state = allocation.state
                slots = (-1, -1) if state is None else (state.slot, state.source)
                pages = allocation.state_pages if sequence.kv_export is None else []
                tokens = sequence.tokens.copy()
                starts.append(
                    StartSequence(
                        allocation.seq,
                        tokens,
                        sequence.num_prompt,
                        sequence.params,
                        *slots,
                        sequence.surprise_limit,
                        pages,
                        sequence.request.second_from,
                        [(grid.first, grid.rows, grid.columns) for grid in grids_of(sequence.request.rows)],
                        spans_of(sequence.request.rows),
                        -1 if sequence.request.adapter is None else sequence.request.adapter.number,
                    )
                )
            parts.append((sequence, allocation, self._part(sequence, allocation, count)))
        items = [*plan.decodes, *[item for _, _, item in parts]] if parts else plan.decodes
        step = Step(plan.number, self._allocator.ends, starts, items)
        self._allocator.ends = []
        self.number += 1
        seconds = self._costs.seconds(plan.answers, plan.prompts)
        self._pending_steps.add(
            PendingStep(
                step,
                plan.decoding,
                plan.allocations,
                parts,
                plan.prefill,
                plan.answers,
                plan.prompts,
                seconds,
                plan.drafts,
                not self._pending_steps,
            )
        )
        return step

    def _part(self, sequence: Sequence, allocation: BlockAllocation, count: int) -> StepItem:
        start, end = allocation.scheduled, allocation.scheduled + count
        first_scored = max(start, allocation.first_unscored)
        known = allocation.sent_blocks
        allocation.sent_blocks = self._allocator.blocks_for(end)
        allocation.scheduled = end
        allocation.last_step = self.number
        states, state = self._allocator.states, allocation.state
        kv_export = sequence.kv_export
        asks = self._drafter is not None and self._drafter.asks_workers
        sequence.expected = self._drafter.expected(sequence, 1) if asks and self._drafter is not None else 0
        leaves = kv_export is not None and end >= kv_export.tokens
        return StepItem(
            seq=allocation.seq,
            start=start,
            count=count,
            new_blocks=allocation.blocks[known : allocation.sent_blocks],
            draws=int(sequence.gives_last and end >= allocation.prefill_target),
            score_from=first_scored if first_scored < min(end, sequence.num_prompt - 1) else -1,
            state_copies=() if states is None or state is None else states.write(state, start, end),
            state_pages=tuple(allocation.state_pages) if leaves else (),
            rows=rows_between(sequence.request.rows, start, end),
            expected=sequence.expected,
        )
