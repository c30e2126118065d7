"""Deadlines that follow size and measured rate, so that large and slow is not mistaken for dead."""

from __future__ import annotations

from homenode.transfer.limits import Limits


class Rate:
    """Bytes a second to or from one process, smoothed."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._rate = limits.worst_rate
        self._measured = False
        self._last = 0.0

    @property
    def bytes_per_second(self) -> float:
        return self._rate

    def took(self, nbytes: int, begun: float, now: float) -> None:
        """A piece was asked for at `begun` and complete at `now`. Pieces queue behind each other: time before the last
        one's end is not counted."""
        seconds = now - max(begun, self._last)
        self._last = now
        if seconds <= 0 or nbytes <= 0:
            return
        seen = max(nbytes / seconds, self._limits.worst_rate)
        self._rate = seen if not self._measured else 0.75 * self._rate + 0.25 * seen
        self._measured = True

    def allowed(self, nbytes: int) -> float:
        """Seconds after which `nbytes` count as lost."""
        return max(self._limits.slowest, self._limits.patience * nbytes / self._rate)
