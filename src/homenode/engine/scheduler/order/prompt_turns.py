"""The prompt that goes first, of those that were begun and those that wait, and what one that was passed over has.
Pure.

Of prompts of one priority and key the one with the least left to compute goes first: it waits for as short a time as it
can, and the others hardly lose by it. The one that came first of them has a fourth of what prompts have in each step
nevertheless; where a step has room for one piece only, the whole of every fourth step. Of another priority or key, that
is so for whoever has waited long, unless nobody waits for it. Where it cannot begin, as others have the slots or
blocks, nobody else begins any more once they had three times what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Final

from homenode.engine.kv.sequence import Sequence
from homenode.engine.request import Urgency
from homenode.engine.scheduler.order.fair_share import AGED_S, KeyShares
from homenode.engine.scheduler.order.queue import WaitingQueue, rank_of
from homenode.engine.scheduler.steps.time_bound import ALIGNMENT

PASSED_SHARE: Final = 0.25  # of the prompts' part of a step, for one that was passed over
_MOST_OWED = 2.0  # pieces: steps that have room for more of them have one for it


class PromptTurns:
    """The order of prompts. `now`: the time of the last event; the planner sets it."""

    def __init__(self, shares: KeyShares, waiting: WaitingQueue, *, whole: bool) -> None:
        """`whole`: prompts are not cut."""
        self._shares, self._waiting, self._whole = shares, waiting, whole
        self.urgency = Urgency.USUAL  # of the prompts of the step that is planned
        self._blocked: int | None = None  # the request that was passed over, and could not begin
        self._computed = 0  # tokens of others' prompts meanwhile
        self._owed = 0.0  # tokens that those who were passed over have had less than their share of late

    def most_urgent(self, begun: List[Sequence]) -> tuple[list[Sequence], list[Sequence]]:
        """Set the urgency that prompts of the next step have, that of the first of all there are. Returns those that
        were begun and have it, and the others.
        """
        first = self._waiting.first()
        self.urgency = min((s.request.urgency for s in (*begun, first) if s is not None), default=Urgency.USUAL)
        have: list[Sequence] = []
        others: list[Sequence] = []
        for sequence in begun:
            (have if sequence.request.urgency == self.urgency else others).append(sequence)
        return have, others

    def first_waiting(self) -> Sequence | None:
        """Return who is next of those that wait; None where that is none of the step's urgency."""
        first = self._waiting.first()
        return None if first is None or first.request.urgency > self.urgency else first

    def sorted(self, begun: List[Sequence]) -> list[Sequence]:
        """Prompts that were begun, in the order of their turns."""
        if len(begun) < 2:
            return list(begun)
        cost = self._shares.cost if self._shares.several else lambda key: 0.0
        return sorted(begun, key=lambda s: (s.request.urgency, cost(s.request.key), *_turn(s)))

    def before(self, sequence: Sequence, other: Sequence) -> bool:
        """Return whether the first of these goes before the second."""
        if sequence.request.urgency != other.request.urgency:
            return sequence.request.urgency < other.request.urgency
        if self._shares.several:
            key, others = sequence.request.key, other.request.key
            if self._shares.ahead(key, others) or self._shares.ahead(others, key):
                return self._shares.ahead(key, others)
        return _turn(sequence) < _turn(other)

    def passed_over(self, begun: List[Sequence], now: float, *, begins: bool) -> Sequence | None:
        """The prompt that others go before although it came first; None: there is none. `begun`: by their turns;
        `begins`: one that waits could begin, as a slot is free.
        """
        first, oldest = (self._waiting.first(), self._waiting.oldest()) if begins else (None, None)
        if first is None and len(begun) < 2:
            return None
        top = begun[0] if begun else first
        assert top is not None  # there is one of both at least
        if first is not None and first is not top and self.before(first, top):
            top = first
        awaited = [s for s in (*begun, oldest) if s is not None and s.request.urgency is Urgency.USUAL]
        aged = min(awaited, key=lambda sequence: sequence.arrived, default=None)
        if aged is not None and aged.arrived + AGED_S <= now:
            return None if aged is top else aged
        alike = [s for s in begun if s.request.key == top.request.key and rank_of(s) == rank_of(top)]
        waits = self._waiting.oldest_like(top) if begins else None
        oldest = min([*alike, *([] if waits is None else [waits])], key=lambda sequence: sequence.order)
        return None if oldest is top else oldest

    def closed_for(self, passed_over: Sequence | None) -> bool:
        """Return whether nobody may begin before it, as it has been passed over long enough."""
        return (
            passed_over is not None
            and passed_over.id == self._blocked
            and self._computed * PASSED_SHARE > (1.0 - PASSED_SHARE) * passed_over.left
        )

    def owed(self, passed_over: Sequence) -> int:
        """Tokens with which the one that was passed over goes before all others: its share did not come to a piece in
        the steps before.
        """
        piece = self._piece(passed_over)
        return int(self._owed) // piece * piece

    def count(self, passed_over: Sequence | None, tokens: int, own: int = 0) -> None:
        """A step was planned in which other prompts than `passed_over` have so many tokens, and this one `own`."""
        due = PASSED_SHARE / (1.0 - PASSED_SHARE) * tokens - own
        most = 0.0 if passed_over is None else _MOST_OWED * self._piece(passed_over)
        self._owed = min(max(0.0, self._owed + due), most)
        if passed_over is not None and passed_over.allocation is None and passed_over.id != self._blocked:
            self._blocked, self._computed = passed_over.id, 0
        self._computed += tokens

    def _piece(self, sequence: Sequence) -> int:
        """The tokens of a prompt that a step has at least, if it has some."""
        return max(1, left_of(sequence)) if self._whole else ALIGNMENT


def left_of(sequence: Sequence) -> int:
    """Tokens that are left to compute of a prompt; 0 of one whose answer was begun."""
    if sequence.num_outputs:
        return 0
    allocation = sequence.allocation
    return sequence.left if allocation is None else allocation.prefill_target - allocation.scheduled


def _turn(sequence: Sequence) -> tuple[int, int, tuple[int, float, int]]:
    return sequence.request.priority, left_of(sequence), sequence.order
