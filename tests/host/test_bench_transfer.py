"""The benchmark of hand-overs itself: small, but with both processes."""

from __future__ import annotations

import pytest

from tests.waiting import wait_until

pytest.importorskip("homenode._native", reason="the native core is not built")

from homenode.bench.kv_transfer.other_process import OtherProcess
from homenode.bench.kv_transfer.timed_transfers import LastPageTransfer, WholeTransfer
from homenode.bench.kv_transfer.transfer import TransferBenchPlan, measure
from homenode.errors import PeerError
from homenode.transfer.scheduler_events import Abandoned, Returned


def test_rows_of_small_pages() -> None:
    rows = measure(TransferBenchPlan((16 << 10,), 80 * (16 << 10), rounds=1, channels=("shm",)))
    by_name = {row.what: row for row in rows}
    assert {f"shm, control, pages: {n}" for n in (1, 64, 80)} <= by_name.keys()
    # Of which digests are taken off.
    assert all(seconds > 0 for row in rows for seconds in row.seconds if "hand-off" not in row.what)
    assert {f"hand-off, pages: {n}" for n in (1, 64, 80)} | {
        "hand-back, pages: 80",
        "two bare round trips, paused",
    } <= by_name.keys()
    assert by_name["shm, whole hand-over"].nbytes == 80 * (16 << 10)
    assert by_name["shm, control, pages: 80"].nbytes == 0


def test_control_moves_one_page_of_many() -> None:
    peer = OtherProcess()
    hand_over = WholeTransfer(peer, "shm", "pull-eager", 16 << 10, 32)
    try:
        hand_over.control(32)
        wait_until(lambda: hand_over.side.agent.figures().completed >= 20)
        figures = hand_over.side.agent.figures()
        assert (figures.pages, figures.held_pages) == (20, 20 * 31)
    finally:
        hand_over.side.close()
        peer.end()


def test_a_hand_off_is_in_place_and_of_the_last_page_alone() -> None:
    peer = OtherProcess()
    hand_off = LastPageTransfer(peer, 16 << 10, 32)
    try:
        _, _, with_digests = hand_off.next(32)
        assert with_digests > 0
        figures = peer.ask(do="figures")
        assert figures["in_place_pages"] >= figures["pages"] > 0 and not figures["digest_mismatches"]
    finally:
        hand_off.side.close()
        peer.end()


def test_the_agent_works_on_when_the_scheduler_does_not() -> None:
    peer = OtherProcess()
    hand_off = LastPageTransfer(peer, 16 << 10, 4)
    try:
        hand_off.side.send("t", hand_off.document, 4, late=[4])
        wait_until(lambda: hand_off.side.agent.figures().peers > 0)  # nobody takes what the sender's agent has to say
    finally:
        hand_off.side.close()
        peer.end()


@pytest.mark.parametrize("channel", ["shm", "tcp"])
def test_a_hand_over_that_failed_is_told_of_and_leaves_its_room_to_the_next(channel: str) -> None:
    peer = OtherProcess()
    hand_over = WholeTransfer(peer, channel, "pull-eager", 16 << 10, 4)
    side = hand_over.side
    try:
        side.send("t", hand_over.document, 4, late=[3])
        side.arrival("t", 3, 20)
        side.agent.tell(Abandoned("t", "as a test wants it"))
        assert isinstance(side.wait("t", 20).event, Returned)
        side.send("u", hand_over.document, 4)
        assert isinstance(side.wait("u", 20).event, Returned)  # all of the receiver's pages
        with pytest.raises(PeerError, match="as a test wants it"):
            hand_over.all_pages()
    finally:
        side.close()
        peer.end()
