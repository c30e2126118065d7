"""When what must have happened: one clock for all the waits of a machine."""

from __future__ import annotations

import heapq
from collections.abc import Hashable


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
