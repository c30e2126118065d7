"""Ranks that are threads of one process: what the reference backend computes tensor-parallel models with, for tests and
comparisons.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from homenode.compute.ops import FloatArray
from homenode.errors import PeerError


class ThreadRanks:
    """`size` ranks; `ranks[i]` is for the thread that computes the i-th. A call waits `timeout_s` seconds for the
    others at most.
    """

    def __init__(self, size: int, timeout_s: float) -> None:
        self.size = size
        self.timeout_s = timeout_s
        self.barrier = threading.Barrier(size)
        self.given: list[FloatArray] = [np.empty((0, 0), np.float32)] * size
        self.arrivals = [0] * size  # that each rank has come to
        self.gone: set[int] = set()
        self.ranks = tuple(ThreadRank(self, rank) for rank in range(size))


class ThreadRank:
    """`RankGroup` of one thread."""

    def __init__(self, all_ranks: ThreadRanks, rank: int) -> None:
        self.rank = rank
        self.size = all_ranks.size
        self._all = all_ranks

    def sum(self, values: FloatArray) -> None:
        """See `RankGroup.sum`."""
        given = self._exchange(values)
        if any(other.shape != values.shape for other in given):
            raise PeerError(f"ranks gave rows of shapes {[list(other.shape) for other in given]} to be added up")
        total = given[0].copy()
        for other in given[1:]:
            total += other
        self._wait_for_all()  # nobody may write to what another still reads
        values[:] = total

    def gather(self, values: FloatArray, widths: Sequence[int]) -> FloatArray:
        """See `RankGroup.gather`."""
        given = self._exchange(values)
        if [other.shape[1] for other in given] != list(widths):
            raise PeerError(f"ranks gave {[other.shape[1] for other in given]} columns; {list(widths)} were wanted")
        beside = np.concatenate(given, axis=1)
        self._wait_for_all()
        return beside

    def leave(self) -> None:
        """See `RankGroup.leave`."""
        self._all.gone.add(self.rank)
        self._all.barrier.abort()

    def _exchange(self, values: FloatArray) -> list[FloatArray]:
        self._all.given[self.rank] = values
        self._wait_for_all()
        return list(self._all.given)

    def _wait_for_all(self) -> None:
        every = self._all
        every.arrivals[self.rank] += 1
        try:
            every.barrier.wait(every.timeout_s)
        except threading.BrokenBarrierError:
            here = every.arrivals[self.rank]
            every.gone |= (
                set() if every.gone else {rank for rank, meetings in enumerate(every.arrivals) if meetings < here}
            )
            late = sorted(every.gone)
            raise PeerError(
                f"rank {', '.join(map(str, late))} of {self.size} is gone, or did not come within "
                f"{every.timeout_s:g} s",
                ranks=late,
            ) from None
