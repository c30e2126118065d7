"""Deadlines: one clock for all the waits of a machine."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Literal

from homenode.transfer.state.machine import Limits
from homenode.transfer.wire.message import Done


class DeadlineHeap:
    """At most one time for each key. O(log n) to set, O(1) to put off; forgotten times are dropped as they come up, or
    when they outnumber the others."""

    def __init__(self) -> None:
        self._times: dict[Hashable, float] = {}
        self._heap: list[tuple[float, int, Hashable]] = []  # of a key that was put off: its earlier time
        self._queued: dict[Hashable, float] = {}  # the time in the heap that counts
        self._count = 0

    def __len__(self) -> int:
        return len(self._times)

    def set(self, key: Hashable, when: float) -> None:
        """Also moves a time already set, to earlier or later."""
        self._times[key] = when
        queued = self._queued.get(key)
        if queued is not None and queued <= when:
            return
        self._queue(key, when)
        if len(self._heap) > 64 + 4 * len(self._times):
            self._heap = [(at, i, k) for i, (k, at) in enumerate(self._times.items())]
            self._queued = dict(self._times)
            self._count = len(self._heap)
            heapq.heapify(self._heap)

    def drop(self, key: Hashable) -> None:
        self._times.pop(key, None)

    def next(self) -> float | None:
        while self._heap:
            at, _, key = self._heap[0]
            when = self._times.get(key)
            if self._queued.get(key) == at:
                if when == at:
                    return when
                heapq.heappop(self._heap)
                del self._queued[key]
                if when is not None:
                    self._queue(key, when)
                continue
            heapq.heappop(self._heap)
        return None

    def due(self, now: float) -> Hashable | None:
        """One key whose time has come, which is forgotten; None when there is none."""
        when = self.next()
        if when is None or when > now:
            return None
        _, _, key = heapq.heappop(self._heap)
        del self._times[key], self._queued[key]
        return key

    def _queue(self, key: Hashable, when: float) -> None:
        self._count += 1
        self._queued[key] = when
        heapq.heappush(self._heap, (when, self._count, key))


class Leases:
    """Leases by number. Each has a time at which it ends unless it is renewed; whoever keeps a page has one."""

    def __init__(self, ttl: float, longest: float, deadlines: DeadlineHeap) -> None:
        """`longest`: seconds after which one ends however often it is renewed."""
        self.ttl = ttl
        self._longest = longest
        self._deadlines = deadlines
        self._live: dict[int, float] = {}  # since when

    def __contains__(self, number: int) -> bool:
        return number in self._live

    def __len__(self) -> int:
        return len(self._live)

    def grant(self, number: int, now: float) -> None:
        """Or renew: it ends `ttl` from now."""
        since = self._live.setdefault(number, now)
        self._deadlines.set(("lease", number), min(now + self.ttl, since + self._longest))

    def renew(self, numbers: Iterable[int], now: float) -> list[int]:
        """Renew those that are live; returns the others."""
        gone = []
        for number in numbers:
            if number in self._live:
                self.grant(number, now)
            else:
                gone.append(number)
        return gone

    def end(self, number: int) -> bool:
        """End it; whether it was live."""
        self._deadlines.drop(("lease", number))
        return self._live.pop(number, None) is not None


Key = tuple[bytes, int]  # incarnation of the sender, pull_id


@dataclass
class _Pending:
    done: Done
    delay: float
    until: float  # the sender's lease has ended by then in any case


class DoneQueue:
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
        """Return what a process has not acknowledged; said at once when a connection stands again."""
        return [pending.done for (whose, _), pending in self._pending.items() if whose == incarnation]

    def acknowledged(self, key: Key) -> bool:
        """Take it as acknowledged; whether it was waited for."""
        return self._drop(key)

    def forget(self, incarnation: bytes) -> None:
        """The process is gone, and all it kept with it."""
        for key in [key for key in self._pending if key[0] == incarnation]:
            self._drop(key)

    def _drop(self, key: Key) -> bool:
        self._deadlines.drop(("done", *key))
        return self._pending.pop(key, None) is not None


End = Literal["done", "expired", "called off"]


class RecentEnds:
    """The ends of the last `most` transfers. Asking a million times about one, or about others, stores nothing."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ends: OrderedDict[int, tuple[bytes, End]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, pull_id: int, incarnation: bytes, end: End) -> None:
        self._ends[pull_id] = (incarnation, end)
        if len(self._ends) > self._most:
            self._ends.popitem(last=False)

    def how(self, pull_id: int) -> tuple[bytes, End] | None:
        """Return how it ended, with the process it was with; None if it was never heard of, or long ago."""
        return self._ends.get(pull_id)


class ReleasedTickets:
    """Tickets given up before they were heard of; the last `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tickets: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: str) -> None:
        self._tickets[ticket] = None
        self._tickets.move_to_end(ticket)
        if len(self._tickets) > self._most:
            self._tickets.popitem(last=False)

    def take(self, ticket: str) -> bool:
        """Tell whether it was given up; asked once."""
        return self._tickets.pop(ticket, 0) is None
