"""The budget: what one step may hold, and what has been put into it while it is planned."""

from __future__ import annotations

import math

from msgspec import structs

from homenode.engine.inputs import spans_of
from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.kv.states import StatePool
from homenode.engine.scheduler.steps.step_load import NO_LOAD, StepLoad
from homenode.engine.scheduler.steps.time_bound import TimeBound
from homenode.engine.step import StepItem

_NO_BLOCKS: list[int] = []
_NO_DRAFTS: dict[int, tuple[int, ...]] = {}


class StepPlan:
    """The items of a step to be: one position for each sequence that decodes, and those of drafted tokens behind it,
    then parts of prompts, within the token and row budgets.

    A row is a position whose logits are wanted: to draw a token, or to score the prompt token after it.
    """

    def __init__(self, number: int, max_tokens: int, max_rows: int) -> None:
        self.number = number  # of the step
        self.tokens_left = max_tokens
        self.rows_left = max_rows
        self.decoding: list[Sequence] = []
        self.allocations: list[BlockAllocation] = []  # of those
        self.decodes: list[StepItem] = []  # of those
        self.drafts = _NO_DRAFTS  # drafted tokens of those that have some, by handle
        # Prompts and how many positions of each, in the order planned.
        self.parts: list[tuple[Sequence, BlockAllocation, int]] = []
        self.prefill = 0  # tokens of all parts
        self.prompts = NO_LOAD  # what these ask of the workers...
        self.answers = NO_LOAD  # ...and what those do who decode
        self.bound: TimeBound | None = None  # of the time that the step may take; None: there is none
        self._kept_tokens = self._kept_rows = 0
        self.claims = 0  # sequences that wait for a block some step in flight brings back
        self.short = False  # blocks ran out: nobody new is admitted in this step

    @property
    def empty(self) -> bool:
        """There is nothing to compute."""
        return not (self.decodes or self.parts)

    def decode(
        self,
        sequences: list[Sequence],
        allocations: list[BlockAllocation],
        block_size: int,
        states: StatePool | None = None,
    ) -> None:
        """Compute the next position of these sequences, which have a block for it, and a slot in `states` where there
        are any.
        """
        number, add, read, item, none = self.number, self.decodes.append, 0, StepItem, _NO_BLOCKS
        self.decoding, self.allocations = sequences, allocations
        for allocation in allocations:
            at = allocation.scheduled
            read += at
            allocation.scheduled = at + 1
            allocation.last_step = number
            if at < allocation.unchecked_until:
                add(item(allocation.seq, at, 1, none, 1))
            else:
                new_blocks = allocation.blocks[allocation.sent_blocks :]
                allocation.sent_blocks = len(allocation.blocks)
                until = allocation.sent_blocks * block_size
                if states is None or allocation.state is None:
                    add(StepItem(allocation.seq, at, 1, new_blocks, 1))
                else:
                    copies = states.write_answer(allocation.state, at + 1)
                    add(StepItem(allocation.seq, at, 1, new_blocks, 1, state_copies=copies))
                    until -= at + 1 < until  # the last position of a block is looked at again: a snapshot follows it
                allocation.unchecked_until = min(until, allocation.last - 1)
        count, read = len(sequences), read + len(sequences)
        self.answers = StepLoad(count, count, read, read, count)
        self.tokens_left -= len(sequences)
        self.rows_left -= len(sequences)

    def draft(self, index: int, drafted: tuple[int, ...], states: StatePool | None = None) -> None:
        """Compute these guesses as well behind the last token of a sequence that decodes, which has blocks for them."""
        allocation, item, count = self.allocations[index], self.decodes[index], len(drafted)
        copies, end = item.state_copies, allocation.scheduled
        if states is not None and allocation.state is not None:
            copies += states.checkpoint(allocation.state, end, count)
        new_blocks = item.new_blocks + allocation.blocks[allocation.sent_blocks :]
        allocation.sent_blocks = len(allocation.blocks)
        allocation.scheduled, allocation.drafted = end + count, count
        self.decodes[index] = StepItem(
            item.seq, item.start, 1 + count, new_blocks, 1 + count, state_copies=copies, drafted=drafted
        )
        if not self.drafts:
            self.drafts = {}
        self.drafts[item.seq] = drafted
        self.answers = self.answers.plus(StepLoad.of_drafts(end, count))
        self.tokens_left -= count
        self.rows_left -= count

    def expect(self, index: int, count: int) -> None:
        """Have a worker guess so many tokens behind the next one of a sequence that decodes."""
        self.decodes[index] = structs.replace(self.decodes[index], expected=count)

    def add(self, sequence: Sequence, allocation: BlockAllocation, count: int) -> None:
        """Compute the next `count` positions of a prompt."""
        rows = rows_of(sequence, allocation, count)
        self.parts.append((sequence, allocation, count))
        beyond = max(0, count - self.tokens_left)  # a picture may be more than what prompts are to have
        self.tokens_left -= count - beyond
        self._kept_tokens = max(0, self._kept_tokens - beyond)
        self.rows_left -= rows
        self.prefill += count
        self.prompts = self.prompts.plus(StepLoad.of_sequence(allocation.scheduled, count, rows))

    def holds(self, sequence: Sequence) -> bool:
        """Return whether a part of this prompt is in it."""
        return any(sequence is planned for planned, _, _ in self.parts)

    def keep_prefill_to(self, count: int) -> None:
        """Limit the step: what is added from here on has so many tokens at most."""
        self.tokens_left = min(self.tokens_left, count)

    def keep(self, share: float) -> None:
        """Leave this share of what prompts may still have in the step, until `release`."""
        self._kept_tokens = max(0, math.ceil(share * self.tokens_left))
        self._kept_rows = max(0, math.ceil(share * self.rows_left))
        self.tokens_left -= self._kept_tokens
        self.rows_left -= self._kept_rows
        if self.bound is not None:
            self.bound.keep(share, self.answers, self.prompts)

    def keep_all_but(self, tokens: int) -> None:
        """Limit the step: what is added from here on has so many tokens at most, until `release`."""
        self._kept_tokens = max(0, self.tokens_left - tokens)
        self.tokens_left -= self._kept_tokens

    def release(self) -> None:
        """Release the rest: what was kept may be used."""
        self.tokens_left += self._kept_tokens
        self.rows_left += self._kept_rows
        self._kept_tokens = self._kept_rows = 0
        if self.bound is not None:
            self.bound.keep(0.0, self.answers, self.prompts)


def rows_of(sequence: Sequence, allocation: BlockAllocation, count: int) -> int:
    """Rows needed when the next `count` positions are computed."""
    end = allocation.scheduled + count
    scored = max(0, min(end, sequence.num_prompt - 1) - max(allocation.scheduled, allocation.first_unscored))
    return scored + (end >= allocation.prefill_target and sequence.gives_last)


def prefill_count(
    sequence: Sequence,
    allocation: BlockAllocation,
    plan: StepPlan,
    *,
    max_tokens: int,
    chunked: bool,
    yields: bool = False,
) -> int:
    """Return how many of its remaining known positions fit the rest of the plan; 0: none, or not without a cut where
    cuts are off. `yields`: its key had more than another.

    Even with cuts off two kinds are cut, as they could never run otherwise: prompts with more positions to score than a
    step has rows, and preempted sequences that have grown beyond `max_tokens`.
    """
    remaining = allocation.prefill_target - allocation.scheduled
    count = min(remaining, plan.tokens_left)
    if allocation.first_unscored < sequence.num_prompt - 1:
        count = min(count, max(0, allocation.first_unscored - allocation.scheduled) + plan.rows_left)
        chunked = True
    elif count == remaining and rows_of(sequence, allocation, count) > plan.rows_left:
        count -= 1
    if plan.bound is not None:
        scored = allocation.first_unscored < sequence.num_prompt - 1
        if count > 0:
            count = plan.bound.fitting(
                plan.answers, plan.prompts, allocation.scheduled, count, scored=scored, yields=yields
            )
    if count < remaining and not chunked and allocation.prefill_target <= max_tokens:
        return 0
    if sequence.request.rows and 0 < count < remaining:
        left = max_tokens - sum(item.count for item in plan.decodes) - plan.prefill
        count = _with_whole_pictures(spans_of(sequence.request.rows), allocation.scheduled, count, left)
        return count if rows_of(sequence, allocation, count) <= plan.rows_left else 0
    return count


def _with_whole_pictures(spans: list[tuple[int, int]], start: int, count: int, left: int) -> int:
    """Return how many positions from `start` on are computed of `count` so that no picture whose rows see each other is
    cut: up to its beginning, or all of it as a step's own tokens, of which so many are `left`, hold it; 0: it waits.
    """
    for first, past in spans:
        if first < start + count < past:
            if start < first:
                return first - start
            return past - start if past - start <= left else 0
    return count
