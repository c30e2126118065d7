"""Pages announced over a lane between two agents of the native core: taken at once, or as a frame's would be, and whatever another process writes there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from homenode.bench.transfer_side import Side
from homenode.compute.native.kv_lane import NativeLanes
from homenode.transfer.at_once import AtOnce
from homenode.transfer.seam import Returned
from tests.host.transfer.rig import eventually

PAGE, PAGES, PATIENCE_S = 64 << 10, 24, 60.0


@pytest.fixture(params=[True, False], ids=["in place", "copied"])
def sides(request: pytest.FixtureRequest) -> Iterator[tuple[Side, Side]]:
    receiver = Side("receiver", "shm", "pull-eager", PAGE, PAGES, False, request.param)
    sender = Side("sender", "shm", "pull-eager", PAGE, 2 * PAGES)
    for block in range(2 * PAGES):
        for piece in sender.memory.pieces(block, sender.block_size // 16):
            piece[:] = os.urandom(len(piece))
    yield sender, receiver
    sender.close()
    receiver.close()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each announcement was taken at once."""
    found: list[bool] = []
    take = AtOnce.take

    def told(self: AtOnce, *given: Any) -> bool:
        found.append(take(self, *given))
        return found[-1]

    monkeypatch.setattr(AtOnce, "take", told)
    return found


def hand_over(sender: Side, receiver: Side, ticket: str, pages: int, late: int) -> None:
    """The last ones are announced when all is quiet."""
    sender.send(ticket, receiver.document, pages, late=list(range(PAGES, PAGES + late)))
    sender.arrival(ticket, pages - late, PATIENCE_S)
    receiver.arrival(ticket, pages - late, PATIENCE_S)
    sender.finish(ticket)
    assert isinstance(sender.wait(ticket, PATIENCE_S).event, Returned)
    receiver.arrival(ticket, pages, PATIENCE_S)
    for side in (sender, receiver):
        assert not side.agent.statistics().broken


@pytest.mark.parametrize(("pages", "late"), [(1, 1), (2, 1), (16, 1), (24, 8), (24, 16)])
def test_pages_are_taken_at_once(sides: tuple[Side, Side], taken: list[bool], pages: int, late: int) -> None:
    sender, receiver = sides
    hand_over(sender, receiver, "first", 2, 1)
    taken.clear()
    for number in range(3):
        hand_over(sender, receiver, f"t{number}", pages, late)
    assert any(taken)
    if not receiver.in_place:  # what was copied last
        for page in range(late):
            here, there = receiver.memory.pieces(pages - late + page, 4), sender.memory.pieces(PAGES + page, 4)
            assert all(bytes(a) == bytes(b) for a, b in zip(here, there, strict=True))


def test_what_does_not_prove_good_at_once_is_verified_as_ever(
    sides: tuple[Side, Side], taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NativeLanes, "take_pages", lambda *given: False)
    hand_over(*sides, "t", 4, 1)
    assert taken and not any(taken)


@pytest.mark.parametrize("written", [b"\xff" * 8, (1 << 18).to_bytes(8, "little"), (8).to_bytes(8, "little") + b"\1" * 8])
def test_garbage_ends_the_connection_and_nothing_else(sides: tuple[Side, Side], written: bytes) -> None:
    sender, receiver = sides
    hand_over(sender, receiver, "before", 2, 1)
    (connection,) = receiver.agent._links.hearing.connections.values()
    lane = connection.lane_in
    assert lane is not None
    os.pwrite(lane.fd, written, 0)  # the header of the lane; a record of garbage lies behind it
    lane.ring()
    eventually(lambda: bool(receiver.agent.statistics().refused), "the end of a connection")
    assert receiver.agent.statistics().refused == {"garbage": 1}
    sender.attend(lambda: not sender.agent._links.greeted, PATIENCE_S, "the end of the connection")
    hand_over(sender, receiver, "after", 2, 1)
