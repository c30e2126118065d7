"""Peers whose connection has ended while their process may live on: whether it has ended, too, is what others wait to
hear. For one thread."""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from homenode.transfer.poller import Poller

_DEATH_S = 0.05  # between a connection's end and its process's, when the process is dying
_MOST_REMAINS = 4096


@dataclass
class _Remains:
    """`until`: when it is told as lost without proof of death."""

    number: int
    pidfd: int
    reason: str
    until: float


class Departed:
    """`gone(number, reason, dead)`, see `listener.Listener.on_gone`, is called for each, once without and once with
    proof of death."""

    def __init__(self, poller: Poller, gone: Callable[[int, str, bool], None]) -> None:
        self._poller, self._gone = poller, gone
        self._remains: dict[int, _Remains] = {}
        self._untold: deque[_Remains] = deque()  # those of them not told as lost yet, by `until`

    @property
    def due(self) -> float | None:
        """When `look_at_the_clock` has something to tell."""
        return self._untold[0].until if self._untold else None

    def tell(self, number: int, pidfd: int | None, reason: str, now: float) -> None:
        """A connection has ended; takes `pidfd` over. The end of it alone does not show that its process writes no
        more."""
        if pidfd is None:
            self._gone(number, reason, False)
        elif is_dead(pidfd):
            os.close(pidfd)
            self._gone(number, reason, True)
        else:
            self._keep(_Remains(number, pidfd, reason, now + _DEATH_S))

    def forget(self, number: int) -> None:
        """Nothing more is told of it."""
        remains = self._remains.pop(number, None)
        if remains is not None:
            self._poller.unwatch(remains.pidfd)
            os.close(remains.pidfd)

    def forget_all(self) -> None:
        """Nothing more is told."""
        for number in list(self._remains):
            self.forget(number)

    def look_at_the_clock(self, now: float) -> None:
        """Those whose process did not turn out to be dead are told as lost."""
        while self._untold and self._untold[0].until <= now:
            remains = self._untold.popleft()
            if remains.number in self._remains:
                self._gone(remains.number, remains.reason, False)

    def _keep(self, remains: _Remains) -> None:
        if len(self._remains) >= _MOST_REMAINS:
            self.forget(next(iter(self._remains)))
        self._remains[remains.number] = remains
        self._untold.append(remains)
        self._poller.watch(remains.pidfd, lambda _events, _now: self._proved_dead(remains))

    def _proved_dead(self, remains: _Remains) -> None:
        self.forget(remains.number)
        self._gone(remains.number, remains.reason, True)


def is_dead(pidfd: int) -> bool:
    """Whether the process has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))
