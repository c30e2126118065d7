"""What one step may hold, and what has been put into it while it is planned."""

from __future__ import annotations

from homenode.engine.schedule.sequence import Residency, Sequence


class StepPlan:
    """The items of a step to be: a number of positions for each sequence, within the token and row budgets.

    A row is a position whose logits are wanted: to draw a token, or to score the prompt token after it.
    """

    def __init__(self, max_tokens: int, max_rows: int) -> None:
        self.tokens_left = max_tokens
        self.rows_left = max_rows
        self.items: dict[int, tuple[Sequence, Residency, int]] = {}  # by handle, in the order planned
        self.prefill = 0  # tokens of prompts among them
        self.claims = 0  # sequences that wait for a block some step in flight brings back
        self.short = False  # blocks ran out: nobody new is admitted in this step

    def add(self, sequence: Sequence, residency: Residency, count: int) -> None:
        """Compute the next `count` positions of a sequence."""
        self.items[residency.seq] = (sequence, residency, count)
        self.tokens_left -= count
        if not residency.decoding:
            self.prefill += count
        self.rows_left -= rows_of(sequence, residency, count)

    def keep_prefill_to(self, count: int) -> None:
        """What is added from here on has so many tokens at most."""
        self.tokens_left = min(self.tokens_left, count)

    def drop(self, residency: Residency) -> None:
        """Take a decoding sequence out again, if it is in."""
        planned = self.items.pop(residency.seq, None)
        if planned:
            sequence, _, count = planned
            self.tokens_left += count
            self.rows_left += rows_of(sequence, residency, count)


def rows_of(sequence: Sequence, residency: Residency, count: int) -> int:
    """Rows needed when the next `count` positions are computed."""
    end = residency.scheduled + count
    scored = max(0, min(end, sequence.num_prompt - 1) - max(residency.scheduled, residency.score_base))
    return scored + (end >= residency.goal and sequence.samples)


def prefill_count(sequence: Sequence, residency: Residency, plan: StepPlan, *, max_tokens: int, chunked: bool) -> int:
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
