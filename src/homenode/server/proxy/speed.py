"""The speed of a server beside others: seconds for a token of work, by which a slow one is found. Pure.

Works of unlike kinds and sizes take unlike times a token, and a whole machine is slower at one hour than at another. So
servers are compared by what they took of late for works of one kind and about one size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

SLOW = 2.0  # times as long as the fastest: less is the machine's noise
SHORTEST_S = 0.02  # what takes less is as fast as can be told
SLOWEST = 64.0
_WEIGHT = 0.7  # of the last time among all: one that took four times as long is noticed at once


class WorkKind(Enum):
    """The work until a server's answer. HANDED_OVER: the first token, behind a prompt that another has computed."""

    PREFILL = "prefill"
    HANDED_OVER = "handed over"
    WHOLE = "whole"


Work = tuple[WorkKind, int]  # and the power of two of its tokens


def work_of(kind: WorkKind, tokens: float) -> Work:
    """The works that one of so many tokens is compared with."""
    return kind, math.frexp(max(tokens, 1.0))[1]


@dataclass(eq=False)
class ServerSpeed:
    """The speed of one server. Its first answer does not count, as whoever has just started is slow."""

    _seconds: dict[Work, float] = field(default_factory=dict)  # logarithms
    _last: Work | None = None
    _begun: bool = False

    def learn(self, work: Work, tokens: float, seconds: float, *, afresh: bool = False) -> None:
        """Take in that so many tokens of work took so many seconds. `afresh`: what was before counts no more."""
        if not self._begun:
            self._begun = True
            return
        now = math.log(max(seconds, SHORTEST_S) / max(tokens, 1.0))
        before = now if afresh else self._seconds.get(work, now)
        self._seconds[work], self._last = before + _WEIGHT * (now - before), work

    def slowness(self, others: Iterable[ServerSpeed]) -> float:
        """How many times as long as the fastest of others it took for the work it did last, from SLOW on; 1 below, and
        where nobody else did such work.
        """
        if self._last is None:
            return 1.0
        theirs = (other._seconds[self._last] for other in others if self._last in other._seconds)
        fastest = min(theirs, default=math.inf)
        times = math.exp(min(self._seconds[self._last] - fastest, math.log(SLOWEST)))
        return times if times >= SLOW else 1.0
