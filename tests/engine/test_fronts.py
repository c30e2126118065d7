"""An engine among several fronts: each gets what it asked for, none waits for another, and what a lost one left is
cleared away.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from homenode.engine.fronts.front_mux import FrontMux
from homenode.engine.fronts.messages import AbortFront, FrontHello, Way
from homenode.engine.fronts.numbers import first_number
from homenode.engine.messages import (
    Abort,
    Drain,
    EngineStats,
    Heartbeat,
    Output,
    Outputs,
    Ping,
    ReleaseKv,
    Submit,
    ToFront,
)
from homenode.engine.request import Request
from homenode.errors import CapacityError, PeerError
from homenode.net.descriptors import door, receive_fd, send_fd
from homenode.net.message_frames import MAX_FRAME, FrameSocket, decode_body
from tests.engine.engines import greedy
from tests.waiting import PATIENCE_S


class Hall:
    """A switchboard with its coordinator, and fronts that came through its door."""

    def __init__(self) -> None:
        coordinator, theirs = socket.socketpair()
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.board = FrontMux(FrameSocket(theirs), self.inbox.put)
        self.door, inner = door()
        self.board.open(inner)
        self._sockets = [coordinator, theirs, self.door]
        coordinator.settimeout(PATIENCE_S)
        self.coordinator = FrameSocket(coordinator)

    def front(self, number: int) -> tuple[FrameSocket, socket.socket]:
        """A front that has been heard."""
        ours, theirs = socket.socketpair()
        self._sockets.append(ours)
        ours.settimeout(PATIENCE_S)
        with theirs:
            assert send_fd(self.door, FrontHello(number), theirs)
        frames = FrameSocket(ours)
        frames.send(Ping(first_number(number) + 1))
        assert self.inbox.get(timeout=PATIENCE_S) == Ping(first_number(number) + 1)
        return frames, ours

    def close(self) -> None:
        for each in self._sockets:
            each.close()


@pytest.fixture
def hall() -> Iterator[Hall]:
    made = Hall()
    yield made
    made.close()


def heard(frames: FrameSocket) -> ToFront:
    body = frames.receive()
    assert body is not None
    message: ToFront = decode_body(body, ToFront)
    return message


def output(front: int, tokens: list[int]) -> Output:
    return Output(first_number(front) + 7, tokens=tokens)


def test_each_is_answered_and_the_coordinator_hears_the_rest(hall: Hall) -> None:
    (one, _), (two, _) = hall.front(1), hall.front(2)
    hall.board.send(Outputs([output(1, [1]), output(2, [2]), output(1, [3]), output(9, [4])]))
    hall.board.send(Heartbeat(first_number(2) + 5, 1.0))
    hall.board.send(Heartbeat(3, 2.0))
    hall.board.send(EngineStats(steps=4))
    assert heard(one) == Outputs([output(1, [1]), output(1, [3])])
    assert heard(two) == Outputs([output(2, [2])])
    assert heard(two) == Heartbeat(first_number(2) + 5, 1.0)
    assert heard(hall.coordinator) == Heartbeat(3, 2.0)
    assert heard(hall.coordinator) == EngineStats(steps=4)


def test_nobody_waits_for_a_front_that_does_not_read(hall: Hall) -> None:
    (slow, _), (quick, _) = hall.front(1), hall.front(2)
    long = [list(range(number, number + 200_000)) for number in range(8)]
    for tokens in long:  # megabytes, which no socket holds
        hall.board.send(Outputs([output(1, tokens), output(2, tokens[:1])]))
        assert heard(quick) == Outputs([output(2, tokens[:1])])
    assert [heard(slow) for _ in long] == [Outputs([output(1, tokens)]) for tokens in long]
    hall.board.send(Outputs([output(1, [5])]))
    assert heard(slow) == Outputs([output(1, [5])])


def test_what_is_too_large_for_a_frame_reaches_nobody(hall: Hall) -> None:
    (one, _), (two, _) = hall.front(1), hall.front(2)
    large = Output(first_number(2) + 1, error="x" * MAX_FRAME)
    with pytest.raises(CapacityError):
        hall.board.send(Outputs([output(1, [1]), large]))
    hall.board.send(Outputs([output(1, [2]), output(2, [3])]))
    assert heard(one) == Outputs([output(1, [2])]) and heard(two) == Outputs([output(2, [3])])


def test_a_front_that_leaves_is_told_of_and_may_be_followed(hall: Hall) -> None:
    (frames, end), (other, _) = hall.front(1), hall.front(2)
    asked = Submit([Request(id=first_number(1) + 3, prompt_ids=[1], params=greedy(4))])
    frames.send(asked)
    assert hall.inbox.get(timeout=PATIENCE_S) == asked
    end.close()
    assert hall.inbox.get(timeout=PATIENCE_S) == AbortFront(1)
    hall.board.send(Outputs([output(1, [1]), output(2, [2])]))
    assert heard(other) == Outputs([output(2, [2])])
    next_one, _ = hall.front(3)
    hall.board.send(Outputs([output(3, [4])]))
    assert heard(next_one) == Outputs([output(3, [4])])


def test_a_ticket_may_be_given_up_by_any_front(hall: Hall) -> None:
    for number in (1, 2):
        frames, _ = hall.front(number)
        frames.send(ReleaseKv("ticket", "it is late"))
        assert hall.inbox.get(timeout=PATIENCE_S) == ReleaseKv("ticket", "it is late")


@pytest.mark.parametrize(
    "message",
    [Drain(1.0), Abort([first_number(2) + 1]), Ping(3), Submit([Request(id=5, prompt_ids=[1], params=greedy(1))])],
)
def test_a_front_that_meddles_is_hung_up_on(hall: Hall, message: Any) -> None:
    frames, _ = hall.front(1)
    frames.send(message)
    assert hall.inbox.get(timeout=PATIENCE_S) == AbortFront(1)
    assert frames.receive() is None


def test_a_socket_arrives_with_its_label() -> None:
    near, far = door()
    ours, theirs = socket.socketpair()
    with near, far, ours:
        far.setblocking(False)
        with pytest.raises(BlockingIOError):
            receive_fd(far, Way)
        with theirs:
            assert send_fd(near, Way(1, 2), theirs)
        taken = receive_fd(far, Way)
        assert taken is not None and taken[0] == Way(1, 2)
        with taken[1] as connected:
            connected.sendall(b"here")
            assert ours.recv(4) == b"here" and not connected.get_inheritable()
        near.close()
        assert receive_fd(far, Way) is None
        assert not send_fd(far, Way(1, 2), ours)


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x93\x01\x02\x03"])
def test_what_is_no_label_is_refused_and_its_socket_closed(data: bytes) -> None:
    near, far = door()
    ours, theirs = socket.socketpair()
    with near, far, ours:
        with theirs:
            socket.send_fds(near, [data or b"\x80"], [theirs.fileno()])
        with pytest.raises(PeerError):
            receive_fd(far, Way)
        assert ours.recv(1) == b"", "nobody has the other end any more"
        near.send(b"\x80")
        with pytest.raises(PeerError):
            receive_fd(far, Way)
