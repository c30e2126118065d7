"""Weights of the native core in memory that several processes map: the words in front, and the range of it that this
process owns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby

from homenode import _native
from homenode.compute.native.refusals import host_errors
from homenode.compute.thread_memory import ThreadMemory
from homenode.errors import UserError

EVERYWHERE = -1  # the home of memory that comes from all of them in turn


class NativeSharedWeights:
    """`SharedWeights` of the native core. `ranges`: address, bytes and home of what this process owns.

    UserError for memory that is not sealed against shrinking, or too small.
    """

    def __init__(self, pool: _native.ThreadPool, fd: int, size: int, memory: ThreadMemory | None) -> None:
        with _refusals():
            self.handle = _native.WeightMemory.map(fd, size)
        self._pool, self._memory = pool, memory
        self.ranges: list[tuple[int, int, int]] = []

    def own(self, runs: Sequence[tuple[int, int]]) -> None:
        """See `SharedWeights.own`. Where the kernel refuses to be asked for nodes, `residency` tells what
        came of it.
        """
        address, _ = self.handle.range
        self.ranges = []
        for home, some in groupby(enumerate(runs), lambda run: self._node_index_of(run[0], len(runs))):
            extents = [extent for _, extent in some]
            begin, end = extents[0][0], extents[-1][1]
            self.ranges.append((address + begin, end - begin, home))
            if self._memory is not None and self._memory.bound:
                with _refusals():
                    self.handle.prefer(
                        begin, end, list(self._memory.nodes) if home == EVERYWHERE else [self._memory.nodes[home]]
                    )

    def open(self, begin: int, end: int) -> None:
        """See `SharedWeights.open`."""
        with _refusals():
            self.handle.open(begin, end)

    def clear(self, begin: int, end: int) -> None:
        """See `SharedWeights.clear`."""
        with _refusals():
            self.handle.clear(begin, end)

    def take_huge(self) -> None:
        """See `SharedWeights.take_huge`."""
        self.handle.take_huge(self._pool)

    def enter(self, begin: int, end: int) -> None:
        """See `SharedWeights.enter`."""
        with _refusals():
            self.handle.enter(self._pool, begin, end)

    def close(self) -> None:
        """See `SharedWeights.close`."""
        with _refusals():
            self.handle.close()

    def _node_index_of(self, run: int, runs: int) -> int:
        """Runs are given to homes as evenly as they can be; where memory lies on the node of whoever touches it first,
        all homes have some of each.
        """
        if self._memory is None or len(self._memory.nodes) == 1:
            return 0
        if self._memory.interleaved or not self._memory.bound:
            return EVERYWHERE
        return run * len(self._memory.nodes) // runs


def shared_words(fd: int, count: int) -> _native.NativeSharedWords:
    """See `SharingBackend.shared_words`."""
    with _refusals():
        return _native.NativeSharedWords.map(fd, count)


@contextmanager
def _refusals() -> Iterator[None]:
    with host_errors():
        try:
            yield
        except ValueError as error:
            raise UserError(f"weights in common with other engines: {error}") from error
