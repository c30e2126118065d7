"""The receiver's done signals: said again until they are acknowledged, in bounded memory. One that is given up is seen
to by the lease."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from homenode.transfer.deadlines import DeadlineHeap
from homenode.transfer.limits import Limits
from homenode.transfer.wire.message import Done

Key = tuple[bytes, int]  # incarnation of the sender, pull_id


@dataclass
class _Pending:
    done: Done
    delay: float
    until: float  # the sender's lease has ended by then in any case


class Dones:
    """Signals not acknowledged yet. The caller sends what `say` returns, and again what `again` returns at the
    deadlines set."""

    def __init__(self, limits: Limits, deadlines: DeadlineHeap) -> None:
        self._limits = limits
        self._deadlines = deadlines
        self._pending: OrderedDict[Key, _Pending] = OrderedDict()
        self.given_up = 0

    def __len__(self) -> int:
        return len(self._pending)

    def waits_for(self, incarnation: bytes) -> bool:
        return any(key[0] == incarnation for key in self._pending)

    def say(self, incarnation: bytes, done: Done, now: float, lease: float) -> None:
        """Remember a signal that is about to be sent. The oldest is given up when there are too many."""
        key = (incarnation, done.pull_id)
        self._pending[key] = _Pending(done, self._limits.repeat, now + lease)
        self._deadlines.set(("done", *key), now + self._limits.repeat)
        if len(self._pending) > self._limits.remembered:
            self._drop(next(iter(self._pending)))
            self.given_up += 1

    def again(self, key: Key, now: float) -> Done | None:
        """Its time has come: what to send again; None if it is not to be."""
        pending = self._pending.get(key)
        if pending is None:
            return None
        if now >= pending.until:
            self._drop(key)
            self.given_up += 1
            return None
        pending.delay = min(2 * pending.delay, 16 * self._limits.repeat)
        self._deadlines.set(("done", *key), min(now + pending.delay, pending.until))
        return pending.done

    def of(self, incarnation: bytes) -> list[Done]:
        """What a process has not acknowledged; said at once when a connection stands again."""
        return [pending.done for (whose, _), pending in self._pending.items() if whose == incarnation]

    def acknowledged(self, key: Key) -> bool:
        """Whether it was waited for."""
        return self._drop(key)

    def forget(self, incarnation: bytes) -> None:
        """The process is gone, and all it kept with it."""
        for key in [key for key in self._pending if key[0] == incarnation]:
            self._drop(key)

    def _drop(self, key: Key) -> bool:
        self._deadlines.drop(("done", *key))
        return self._pending.pop(key, None) is not None
