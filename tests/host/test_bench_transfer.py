"""The benchmark of hand-overs itself: small, but with both processes."""

from __future__ import annotations

import os
import time

import pytest

pytest.importorskip("homenode._native", reason="the native core is not built")

from homenode.bench.handing_over import HandOver
from homenode.bench.other_process import OtherProcess
from homenode.bench.transfer import Plan, measure


def test_rows_of_small_pages() -> None:
    rows = measure(Plan((16 << 10,), 80 * (16 << 10), rounds=1, channels=("shm",)))
    by_name = {row.what: row for row in rows}
    assert {f"shm, control, pages: {n}" for n in (1, 64, 80)} <= by_name.keys()
    assert all(seconds > 0 for row in rows for seconds in row.seconds)
    assert by_name["shm, whole hand-over"].nbytes == 80 * (16 << 10)
    assert by_name["shm, control, pages: 80"].nbytes == 0


def test_control_moves_one_page_of_many() -> None:
    peer = OtherProcess()
    hand_over = HandOver(peer, "shm", "pull-eager", 16 << 10, 32)
    try:
        hand_over.control(32)
        deadline = time.monotonic() + 10
        while (figures := hand_over.side.agent.figures()).completed < 20:
            assert time.monotonic() < deadline
            os.sched_yield()
        assert (figures.pages, figures.held_pages) == (20, 20 * 31)
    finally:
        hand_over.side.close()
        peer.end()
