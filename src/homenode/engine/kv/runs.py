"""Free block ids, kept as runs of adjacent ids so that a sequence can lie in one piece.

A run is a maximal range of free ids. Runs are found by either end in O(1) and by length through a heap whose outdated
entries are skipped, so that adding and taking cost O(log n).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from homenode.errors import InternalError
from homenode.units import format_count


class FreeRuns:
    """A set of block ids, merged into runs."""

    def __init__(self, count: int) -> None:
        """Ids 0 .. count - 1, as one run."""
        self._end: dict[int, int] = {}  # first id of a run -> id after its last
        self._start: dict[int, int] = {}  # id after the last of a run -> its first id
        self._longest: list[tuple[int, int]] = []  # heap of (-length, first id); outdated unless _end agrees
        self._count = count
        if count:
            self._insert(0, count)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for start, end in self._end.items():
            yield from range(start, end)

    def add(self, block: int) -> None:
        """Put one id back; it grows the runs beside it. The caller knows that it is not in the set."""
        start, end = block, block + 1
        if block in self._start:
            start = self._start.pop(block)
            del self._end[start]
        if end in self._end:
            end = self._end.pop(block + 1)
            del self._start[end]
        self._insert(start, end)
        self._count += 1

    def take(self, count: int, after: int = -1) -> list[int]:
        """Remove and return `count` ids: those that follow `after` first, then from the longest runs.

        The longest run rather than one that just fits: what stays free behind a new sequence is where it will grow.
        InternalError when there are fewer than `count`.
        """
        if count > self._count:
            raise InternalError(
                f"{format_count(count, 'free block')} wanted, {self._count} there", wanted=count, free=self._count
            )
        taken: list[int] = []
        if after + 1 in self._end and after >= 0:
            taken += self._cut(after + 1, count)
        while len(taken) < count:
            taken += self._cut(self._pop_longest(), count - len(taken))
        return taken

    def audit(self) -> None:
        """Check that runs beside each other are one, that the ids are counted, and that no more outdated entries are
        kept than are rebuilt away. InternalError says what is wrong. O(runs).
        """
        if touching := self._end.keys() & self._start.keys():
            raise InternalError(f"two runs of free blocks meet at {min(touching)}", block=min(touching))
        if (counted := sum(end - start for start, end in self._end.items())) != self._count:
            raise InternalError(f"{format_count(counted, 'free block')} in runs, {self._count} counted")
        if len(self._longest) > 2 * len(self._end) + 64:
            raise InternalError(f"{len(self._longest)} entries kept of {format_count(len(self._end), 'free run')}")

    def _insert(self, start: int, end: int) -> None:
        self._end[start] = end
        self._start[end] = start
        heapq.heappush(self._longest, (start - end, start))
        # Mostly outdated entries: rebuild, at a cost the pushes have paid for.
        if len(self._longest) > 2 * len(self._end) + 64:
            self._longest = [(first - after, first) for first, after in self._end.items()]
            heapq.heapify(self._longest)

    def _pop_longest(self) -> int:
        """First id of the longest run (the lowest among equals)."""
        while True:
            negative_length, start = heapq.heappop(self._longest)
            if self._end.get(start) == start - negative_length:
                return start

    def _cut(self, start: int, limit: int) -> range:
        """Remove up to `limit` ids from the beginning of the run that starts at `start`."""
        end = self._end.pop(start)
        del self._start[end]
        cut = min(end, start + limit)
        if cut < end:
            self._insert(cut, end)
        self._count -= cut - start
        return range(start, cut)
