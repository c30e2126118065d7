"""The speed of a server beside others: seconds for a token of work, by which a slow one is found. Pure.

Works of unlike models, kinds and sizes take unlike times a token, and a whole machine is slower at one hour than at
another. So servers are compared by what they took of late for works of one model, one kind and about one size. How much
a work was is known within bounds only, as what a cache holds is guessed: no server is slow by a guess.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import Enum

SLOW = 2.0  # times as long as the fastest: less is the machine's noise
SHORTEST_S = 0.02  # what takes less is as fast as can be told
SLOWEST = 64.0
_WEIGHT = 0.7  # of the last time among all: one that took four times as long is noticed at once
_NARROW = math.log(1.5)  # bounds between which a time is known, where nothing was before; less than SLOW


class WorkKind(Enum):
    """The work until a server's answer. HANDED_OVER: the first token, behind a prompt that another has computed."""

    PREFILL = "prefill"
    HANDED_OVER = "handed over"
    WHOLE = "whole"


Work = tuple[str, WorkKind, int]  # the model, and the power of two of its tokens


def work_of(model: str, kind: WorkKind, tokens: float) -> Work:
    """The works that one of so many tokens is compared with."""
    return model, kind, math.frexp(max(tokens, 1.0))[1]


@dataclass(eq=False)
class ServerSpeed:
    """The speed of one server. Its first answer by a model does not count, as whoever has just started is slow."""

    _seconds: dict[Work, float] = field(default_factory=dict)  # logarithms
    _last: dict[str, Work] = field(default_factory=dict)  # by model
    _begun: set[str] = field(default_factory=set)  # models

    @property
    def models(self) -> Collection[str]:
        """Return the models of which anything is known."""
        return self._last.keys()

    def learn(self, work: Work, least: float, most: float, seconds: float, *, afresh: bool = False) -> bool:
        """Take in that work of `least` to `most` tokens took so many seconds: of all that a token may have taken, what
        is nearest to what was known. Bounds far apart around that tell nothing. `afresh`: what was before counts no
        more. Return whether it told anything.
        """
        if work[0] not in self._begun:
            self._begun.add(work[0])
            return False
        low, high = (math.log(max(seconds, SHORTEST_S) / max(tokens, 1.0)) for tokens in (most, least))
        before = self._seconds.get(work)
        if high - low > _NARROW and (before is None or low <= before <= high):
            return False
        before = (low + high) / 2 if before is None else before
        now = min(max(before, low), high)
        self._seconds[work] = now if afresh else before + _WEIGHT * (now - before)
        self._last[work[0]] = work
        return True

    def slowness(self, others: Iterable[ServerSpeed], model: str) -> float:
        """How many times as long as the fastest of others it took for the work of a model that it did last, from SLOW
        on; 1 below, and where nobody else did such work.
        """
        last = self._last.get(model)
        if last is None:
            return 1.0
        fastest = min((other._seconds[last] for other in others if last in other._seconds), default=math.inf)
        times = math.exp(min(self._seconds[last] - fastest, math.log(SLOWEST)))
        return times if times >= SLOW else 1.0
