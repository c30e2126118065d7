"""A watch on how long compute threads wait for each other, which looks at a step now and then and costs the others
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_EVERY_S = 0.5
_KEPT = 0.8  # of what was seen, at each further look: some three seconds of a busy engine count


class BarrierWatch:
    """The share of recent steps in which the first of several compute threads waited at barriers. It is the one that
    has the clock: where it is the slowest itself, the others wait and it does not; who lacks its CPU is told by
    `lost_cpu_shares`.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._waits, self._clock = threads > 1, clock
        self._next = 0.0
        self._seconds = self._waited = 0.0

    @property
    def share(self) -> float | None:
        """Return that share; None where there is nobody to wait for, or nothing was seen yet."""
        return self._waited / self._seconds if self._seconds else None

    def is_due(self) -> bool:
        """Return whether the next step is to be looked at."""
        return self._waits and self._clock() >= self._next

    def take(self, seconds: float, waited: float) -> None:
        """Count a step, in which so much time was waited."""
        self._next = self._clock() + _EVERY_S
        self._seconds = self._seconds * _KEPT + seconds
        self._waited = self._waited * _KEPT + waited
