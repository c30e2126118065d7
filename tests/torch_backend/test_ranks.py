"""Ranks over gloo: the same bits everywhere, and nobody waits for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from homenode.compute.torch.device import open_device
from homenode.compute.torch.ranks import GlooGroup, open_group
from homenode.errors import PeerError
from tests.waiting import PATIENCE_S

WIDTHS = (3, 1, 4)


def together(
    path: Path, size: int, act: Callable[[GlooGroup], Any], timeout_s: float = PATIENCE_S, name: str = "0"
) -> list[Any]:
    """What each of `size` ranks comes to: a value, or the error it ended with."""

    def rank(number: int) -> Any:
        try:
            return act(open_group(str(path / "store"), name, number, size, open_device("torch:cpu"), timeout_s))
        except PeerError as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return [running.result(2 * PATIENCE_S) for running in [threads.submit(rank, number) for number in range(size)]]


def test_sums_are_in_the_order_of_the_ranks(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(0, 1e3, (3, 5, 7)).astype(np.float32)

    def act(group: GlooGroup) -> np.ndarray[Any, Any]:
        mine = values[group.rank].copy()
        for _ in range(3):
            mine[:] = values[group.rank]
            group.sum(mine)
        return mine

    for found in together(tmp_path, 3, act):
        assert np.array_equal(found, (values[0] + values[1]) + values[2])


def test_gathers_of_uneven_columns(tmp_path: Path) -> None:
    def act(group: GlooGroup) -> np.ndarray[Any, Any]:
        return group.gather(np.full((2, WIDTHS[group.rank]), group.rank, np.float32), WIDTHS)

    for found in together(tmp_path, 3, act):
        assert found.tolist() == [[0, 0, 0, 1, 2, 2, 2, 2]] * 2


def test_a_rank_that_leaves_is_named_and_all_later_calls_fail(tmp_path: Path) -> None:
    groups: dict[int, GlooGroup] = {}

    def act(group: GlooGroup) -> list[str]:
        groups[group.rank] = group
        group.sum(np.ones((1, 2), np.float32))
        if group.rank == 1:
            group.leave()
            group.leave()
        return [failure(group), failure(group)]

    found = together(tmp_path, 3, act)
    # The other two are in an exchange with it still. As long as its connections are open, gloo would wait for that
    # until the deadline when it takes their groups apart.
    del groups[1]
    begin = time.monotonic()
    groups.clear()
    assert time.monotonic() - begin < PATIENCE_S / 2
    assert found[1] == ["rank 1 left the group of 3 ranks"] * 2
    for rank in (0, 2):
        assert found[rank][0] == found[rank][1] and f"rank {rank} of 3 lost rank 1 in a step" in found[rank][0]


def failure(group: GlooGroup) -> str:
    """What a sum fails with, soon. Nothing holds the group when it is known, as a traceback that is kept would."""
    begin = time.monotonic()
    try:
        group.sum(np.ones((1, 2), np.float32))
    except PeerError as error:
        assert time.monotonic() - begin < PATIENCE_S / 2
        return error.message
    raise AssertionError("the sum did not fail")


def test_a_silent_rank_is_waited_for_until_the_deadline(tmp_path: Path) -> None:
    done = threading.Barrier(2)

    def act(group: GlooGroup) -> str:
        if group.rank == 0:
            done.wait(PATIENCE_S)
            return "silent"
        begin = time.monotonic()
        with pytest.raises(PeerError, match="rank 1 of 2 lost rank 0"):
            group.sum(np.ones((1, 2), np.float32))
        assert time.monotonic() - begin < PATIENCE_S / 2
        done.wait(PATIENCE_S)
        return "noticed"

    assert together(tmp_path, 2, act, timeout_s=2.0) == ["silent", "noticed"]


def test_ranks_that_never_come_are_named(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match=r"rank 0 of 3 waited 1 s for ranks 1, 2"):
        open_group(str(tmp_path / "store"), "0", 0, 3, open_device("torch:cpu"), 1.0)


def meet(group: GlooGroup) -> int:
    """The rank, when the others are connected as well: who left before would be one that is lost."""
    group.sum(np.zeros(1, np.float32))
    return group.rank


def test_generations_share_a_store(tmp_path: Path) -> None:
    for generation in ("1", "2"):
        assert together(tmp_path, 2, meet, name=generation) == [0, 1]
