"""What one step may hold, and what has been put into it while it is planned."""

from __future__ import annotations

from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.step import StepItem

_NO_BLOCKS: list[int] = []


class StepPlan:
    """The items of a step to be: one position for each sequence that decodes, then parts of prompts, within the token and row budgets.

    A row is a position whose logits are wanted: to draw a token, or to score the prompt token after it.
    """

    def __init__(self, number: int, max_tokens: int, max_rows: int) -> None:
        self.number = number  # of the step
        self.tokens_left = max_tokens
        self.rows_left = max_rows
        self.decoding: list[Sequence] = []
        self.residencies: list[BlockAllocation] = []  # of those
        self.decodes: list[StepItem] = []  # of those
        self.parts: list[
            tuple[Sequence, BlockAllocation, int]
        ] = []  # prompts and how many positions of each, in the order planned
        self.prefill = 0  # tokens of all parts
        self.claims = 0  # sequences that wait for a block some step in flight brings back
        self.short = False  # blocks ran out: nobody new is admitted in this step

    @property
    def empty(self) -> bool:
        """There is nothing to compute."""
        return not (self.decodes or self.parts)

    def decode(self, sequences: list[Sequence], residencies: list[BlockAllocation], block_size: int) -> None:
        """Compute the next position of these sequences, which have a block for it."""
        number, add = self.number, self.decodes.append
        self.decoding, self.residencies = sequences, residencies
        for residency in residencies:
            at = residency.scheduled
            residency.scheduled = at + 1
            residency.last_step = number
            if at < residency.until:
                add(StepItem(residency.seq, at, 1, _NO_BLOCKS, True))
            else:
                add(StepItem(residency.seq, at, 1, residency.blocks[residency.sent_blocks :], True))
                residency.sent_blocks = len(residency.blocks)
                residency.until = min(residency.sent_blocks * block_size, residency.last - 1)
        self.tokens_left -= len(sequences)
        self.rows_left -= len(sequences)

    def add(self, sequence: Sequence, residency: BlockAllocation, count: int) -> None:
        """Compute the next `count` positions of a prompt."""
        self.parts.append((sequence, residency, count))
        self.tokens_left -= count
        self.rows_left -= rows_of(sequence, residency, count)
        self.prefill += count

    def keep_prefill_to(self, count: int) -> None:
        """What is added from here on has so many tokens at most."""
        self.tokens_left = min(self.tokens_left, count)


def rows_of(sequence: Sequence, residency: BlockAllocation, count: int) -> int:
    """Rows needed when the next `count` positions are computed."""
    end = residency.scheduled + count
    scored = max(0, min(end, sequence.num_prompt - 1) - max(residency.scheduled, residency.score_base))
    return scored + (end >= residency.goal and sequence.samples)


def prefill_count(
    sequence: Sequence, residency: BlockAllocation, plan: StepPlan, *, max_tokens: int, chunked: bool
) -> int:
    """How many of its remaining known positions fit the rest of the plan; 0: none, or not without a cut where cuts are off.

    Even with cuts off two kinds are cut, as they could never run otherwise: prompts with more positions to score than a step has rows, and
    preempted sequences that have grown beyond `max_tokens`.
    """
    remaining = residency.goal - residency.scheduled
    count = min(remaining, plan.tokens_left)
    if residency.score_base < sequence.num_prompt - 1:
        count = min(count, max(0, residency.score_base - residency.scheduled) + plan.rows_left)
        chunked = True
    elif count == remaining and rows_of(sequence, residency, count) > plan.rows_left:
        count -= 1
    if count < remaining and not chunked and residency.goal <= max_tokens:
        return 0
    return count
