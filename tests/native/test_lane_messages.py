"""Pages announced over a lane between two agents of the native core: taken at once, or as a frame's would be, and
whatever another process writes there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from homenode.bench.kv_transfer.transfer_side import Side
from homenode.compute.native.kv_lane import NativeLanes
from homenode.transfer.agent.fast_path import FastPath
from homenode.transfer.scheduler_events import Returned
from tests.waiting import PATIENCE_S, wait_until

PAGE, PAGES = 64 << 10, 24
_REHEARSED = 1 << 31  # page of an announcement that fits nothing


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
    """Whether each announcement was taken at once, apart from rehearsals."""
    found: list[bool] = []
    take = FastPath.take

    def told(self: FastPath, connection: Any, said: Any) -> bool:
        answer = take(self, connection, said)
        if said.first != _REHEARSED:
            found.append(answer)
        else:
            assert not answer
        return answer

    monkeypatch.setattr(FastPath, "take", told)
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


@pytest.mark.parametrize(("page", "late", "at_once"), [(8 << 20, 1, True), (2 << 20, 2, True), (2 << 20, 3, False)])
def test_one_page_is_taken_at_once_whatever_its_size(page: int, late: int, at_once: bool, taken: list[bool]) -> None:
    receiver, sender = (
        Side("receiver", "shm", "pull-eager", page, 4, in_place=True),
        Side("sender", "shm", "pull-eager", page, 2 * PAGES),
    )
    try:
        hand_over(sender, receiver, "first", 2, 1)
        taken.clear()
        sender.send("t", receiver.document, 4, late=list(range(PAGES, PAGES + late)))
        sender.arrival("t", 4 - late, PATIENCE_S)
        receiver.arrival("t", 4 - late, PATIENCE_S)
        prepared((sender, receiver), 1, first=4 - late)
        taken.clear()
        sender.finish("t")
        assert isinstance(sender.wait("t", PATIENCE_S).event, Returned)
        assert any(taken) == at_once
    finally:
        sender.close()
        receiver.close()


def test_one_after_another_before_any_books_are_kept(sides: tuple[Side, Side], taken: list[bool]) -> None:
    sender, receiver = sides
    hand_over(sender, receiver, "first", 2, 1)
    for number in range(3):
        sender.send(f"t{number}", receiver.document, 4, late=[PAGES + number])
    for number in range(3):
        sender.arrival(f"t{number}", 3, PATIENCE_S)
        receiver.arrival(f"t{number}", 3, PATIENCE_S)
    prepared(sides, 3, first=3)
    taken.clear()
    with receiver.agent.working:  # it can hear nothing before all was said
        for number in range(3):
            sender.finish(f"t{number}")
        assert sender.agent._feeder.announced == {"t0", "t1", "t2"}
    for number in range(3):
        assert isinstance(sender.wait(f"t{number}", PATIENCE_S).event, Returned)
        receiver.arrival(f"t{number}", 4, PATIENCE_S)
    assert taken == [True] * 3
    for side in sides:
        assert not side.agent.statistics().broken


def prepared(sides: tuple[Side, Side], count: int, first: int) -> None:
    """Both machines have said what they will answer about so many hand-overs, whose page `first` is next: of what was
    announced before something may be left.
    """
    sender, receiver = (side.agent._performer.at_once for side in sides)

    def ready(found: dict[Any, Any]) -> bool:
        return [one.next.first for one in list(found.values())] == [first] * count

    wait_until(lambda: ready(receiver.taking), f"{count} hand-overs are expected")
    sides[0].wait_for(lambda: ready(sender.sending), PATIENCE_S, f"{count} hand-overs to be announced")


def test_who_was_promised_pages_rehearses_and_looks_for_them(
    sides: tuple[Side, Side], taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, receiver = sides
    hand_over(sender, receiver, "first", 2, 1)
    looked: list[int] = []
    rehearse = FastPath.rehearse

    def told(self: FastPath, connection: Any) -> None:
        looked.append(len(self.taking))
        rehearse(self, connection)
        assert len(self.taking) == looked[-1]  # nothing came of it

    monkeypatch.setattr(FastPath, "rehearse", told)
    for number in range(200):  # it may be awake at any of them
        ticket = f"t{number}"
        sender.send(ticket, receiver.document, 4, late=[PAGES])
        sender.arrival(ticket, 3, PATIENCE_S)
        receiver.arrival(ticket, 3, PATIENCE_S)
        prepared(sides, 1, first=3)
        sender.compute(ticket, 1e-3, 1e-4)
        sender.finish(ticket)
        assert isinstance(sender.wait(ticket, PATIENCE_S).event, Returned)
        receiver.arrival(ticket, 4, PATIENCE_S)
        if any(looked):
            break
    assert any(looked) and any(taken)


def test_promises_that_are_not_kept_change_nothing(sides: tuple[Side, Side]) -> None:
    sender, receiver = sides
    hand_over(sender, receiver, "first", 2, 1)
    sender.send("t", receiver.document, 4, late=[PAGES])
    sender.arrival("t", 3, PATIENCE_S)
    receiver.arrival("t", 3, PATIENCE_S)
    prepared(sides, 1, first=3)
    for _ in range(1000):
        sender.agent.promise(["t", "nobody's"])
    sender.finish("t")
    assert isinstance(sender.wait("t", PATIENCE_S).event, Returned)
    receiver.arrival("t", 4, PATIENCE_S)
    for side in sides:
        assert not side.agent.statistics().broken and not side.agent.statistics().refused


def test_the_same_pages_announced_twice_cost_the_peer_only(sides: tuple[Side, Side], taken: list[bool]) -> None:
    sender, receiver = sides
    sender.send("t", receiver.document, 4, late=[PAGES, PAGES + 1])
    sender.arrival("t", 2, PATIENCE_S)
    receiver.arrival("t", 2, PATIENCE_S)
    prepared(sides, 1, first=2)
    sending, prepared_there = sender.agent._performer.at_once.sending["t"], receiver.agent._performer.at_once
    wait_until(  # what is expected is put together anew, in another table, whenever the machine was told something
        lambda: (
            receiver.agent.working.acquire()
            and (bool(prepared_there.taking) or receiver.agent.working.release() is not None)
        ),
        "and still, under its lock",
    )
    try:
        taken.clear()
        for _ in range(2):
            assert sending.lending.announce(sending.connection.sent, 2, [PAGES], False)
    finally:
        receiver.agent.working.release()
    wait_until(
        lambda: bool(receiver.agent.figures().bad_frames or receiver.agent.machine.figures().bad_frames),
        "the violation is counted",
    )
    assert taken == [True, False] and receiver.agent.machine.figures().bad_frames == {"ready": 1}
    assert not receiver.agent.statistics().broken
    sender.agent.close(0.0)  # its pages are waited for otherwise: nobody says Done to who broke the protocol


def test_what_does_not_prove_good_at_once_is_verified_as_ever(
    sides: tuple[Side, Side], taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    expect = NativeLanes.expect
    monkeypatch.setattr(NativeLanes, "expect", lambda self, sources, *rest: expect(self, {}, *rest))
    hand_over(*sides, "t", 4, 1)
    assert taken and not any(taken)


@pytest.mark.parametrize(
    "written", [b"\xff" * 8, (1 << 18).to_bytes(8, "little"), (8).to_bytes(8, "little") + b"\1" * 8]
)
def test_garbage_ends_the_connection_and_nothing_else(sides: tuple[Side, Side], written: bytes) -> None:
    sender, receiver = sides
    hand_over(sender, receiver, "before", 2, 1)
    (connection,) = receiver.agent._links.hearing.connections.values()
    lane = connection.lane_in
    assert lane is not None
    os.pwrite(lane.fd, written, 0)  # the header of the lane; a record of garbage lies behind it
    lane.wake()
    wait_until(lambda: bool(receiver.agent.statistics().refused), "the end of a connection")
    assert receiver.agent.statistics().refused == {"garbage": 1}
    # What is offered before is refused.
    sender.wait_for(lambda: not sender.agent.machine.figures().peers, PATIENCE_S, "the end of the connection")
    hand_over(sender, receiver, "after", 2, 1)
