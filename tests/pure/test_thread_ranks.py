"""Ranks that are threads: sums in the order of the ranks, columns beside each other, and nobody who waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from homenode.compute.ops import FloatArray
from homenode.compute.ranks import RankGroup
from homenode.compute.reference import ThreadRanks
from homenode.errors import PeerError

LONG = 60.0


def at_once(group: ThreadRanks, act: Callable[[RankGroup], FloatArray]) -> list[FloatArray]:
    with ThreadPoolExecutor(group.size) as threads:
        return [run.result(LONG) for run in [threads.submit(act, rank) for rank in group.ranks]]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sums_have_the_same_bits_everywhere(size: int) -> None:
    """Added in the order of the ranks, whoever comes first: 1e8 + 1 - 1e8 depends on it."""
    values = [np.full((3, 2), value, np.float32) for value in (1e8, 1.0, -1e8, 0.3, 7.0)[:size]]
    wanted = values[0].copy()
    for other in values[1:]:
        wanted += other
    group = ThreadRanks(size, LONG)

    def act(rank: RankGroup) -> FloatArray:
        for _ in range(20):
            mine = values[rank.rank].copy()
            rank.sum(mine)
            assert np.array_equal(mine, wanted)
        return mine

    assert all(np.array_equal(found, wanted) for found in at_once(group, act))


def test_columns_of_all_ranks_beside_each_other() -> None:
    widths = (2, 1, 3)
    group = ThreadRanks(3, LONG)
    found = at_once(group, lambda rank: rank.gather(np.full((4, widths[rank.rank]), rank.rank, np.float32), widths))
    assert all(np.array_equal(f, np.tile(np.array([0, 0, 1, 2, 2, 2], np.float32), (4, 1))) for f in found)
    with pytest.raises(PeerError, match=r"\[1, 1, 1\] columns; \[2, 1, 3\] were wanted"):
        at_once(group, lambda rank: rank.gather(np.zeros((4, 1), np.float32), widths))


def test_a_rank_that_does_not_come_is_named_and_all_is_over() -> None:
    group = ThreadRanks(3, 0.05)
    with ThreadPoolExecutor(2) as threads:
        waiting = [threads.submit(group.ranks[rank].sum, np.zeros((1, 1), np.float32)) for rank in (0, 2)]
        for run in waiting:
            with pytest.raises(PeerError, match="rank 1 of 3 is gone") as caught:
                run.result(LONG)
            assert caught.value.facts["ranks"] == [1]
    with pytest.raises(PeerError, match="rank 1 of 3"):
        group.ranks[1].gather(np.zeros((1, 1), np.float32), (1, 1, 1))


def test_who_leaves_ends_the_others_waiting() -> None:
    group = ThreadRanks(2, LONG)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(group.ranks[0].sum, np.zeros((1, 1), np.float32))
        group.ranks[1].leave()
        group.ranks[1].leave()
        with pytest.raises(PeerError, match="rank 1 of 2"):
            waiting.result(LONG)
