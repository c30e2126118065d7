"""What peers have promised over their lanes: looked for, for a while, by the thread that was woken for it, which walks
through beforehand what it will do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from homenode.transfer.connection import Connection

_APPLYING_S = 0.3e-3  # more than a scheduler needs to apply the result of a step
_WARM_S = 0.3e-3  # so long what was walked through is expected to stay in the caches
_SLOW_READING = 4e9  # bytes a second, by the other side of what it announces


class _Lanes(Protocol):
    """`hearing.Hearing`."""

    def promised(self) -> list[Connection]: ...

    def watch(self, epoll: int, seconds: float) -> bool | None: ...


class Promises:
    """For the thread that leads an agent. A promise that is not kept costs it the time it looked; who breaks many in a
    row is not believed (`csrc/host/lane.h`)."""

    def __init__(
        self,
        lanes: _Lanes,
        nbytes: int,
        walk_through: Callable[[Connection], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`nbytes`: so many may be read by the other side before it announces them. `walk_through`: see
        `at_once.AtOnce.rehearse`."""
        self._lanes, self._walk_through, self._clock = lanes, walk_through, clock
        self._patience_s = _APPLYING_S + nbytes / _SLOW_READING
        self._open: list[Connection] = []  # by these
        self._until = 0.0

    def notice(self) -> bool:
        """Whether something is promised that was not before: `watch` will look for it."""
        promised = self._lanes.promised()
        if self._open or not promised:
            return False
        self._open, self._until = promised, self._clock() + self._patience_s
        self._walk_through(promised[0])
        return True

    def kept(self) -> None:
        """Something has come."""
        self._open = []

    def watch(self, epoll: int, until: float) -> bool | None:
        """Look for what was promised, then for whatever else may come until then, and at a descriptor of epoll: whether
        there is something. None: there is nowhere to look."""
        looked = True
        while self._open:
            left = self._until - self._clock()
            if left <= 0:
                self._give_up()
                looked = False  # since their bells were quiet
            elif self._lanes.watch(epoll, min(left, _WARM_S)):
                return True
            else:
                self._walk_through(self._open[0])
        left = until - self._clock()
        return self._lanes.watch(epoll, max(left, 0.0)) if left > 0 or not looked else False

    def _give_up(self) -> None:
        for connection in self._open:
            if connection.lane_in is not None:
                connection.lane_in.clear_hint()
        self._open = []
