"""Who was promised something looks for it in time, for so long, and never sleeps on what has come."""

from __future__ import annotations

from typing import Any

from homenode.transfer.net.peer_watch import ExpectedAnnouncements


class Lane:
    def __init__(self) -> None:
        self.wake_hinted = True
        self.cleared = 0

    def clear_hint(self) -> None:
        self.wake_hinted, self.cleared = False, self.cleared + 1


class Peer:
    def __init__(self) -> None:
        self.lane_in = Lane()


class Lanes:
    """A clock that goes on while they are watched; `comes`: when there is something."""

    def __init__(self, *peers: Peer) -> None:
        self.peers, self.now, self.comes, self.looks = peers, 0.0, 1e9, 0

    def promised(self) -> list[Any]:
        return [peer for peer in self.peers if peer.lane_in.wake_hinted]

    def watch(self, epoll: int, seconds: float) -> bool:
        self.looks += 1
        self.now = min(self.now + seconds, max(self.now, self.comes))
        return self.now >= self.comes


def made(lanes: Lanes, nbytes: int = 0) -> tuple[ExpectedAnnouncements, list[Any]]:
    walked: list[Any] = []
    return ExpectedAnnouncements(lanes, nbytes, walked.append, lambda: lanes.now), walked


def test_nothing_is_looked_for_that_nobody_promised() -> None:
    lanes = Lanes()
    promises, walked = made(lanes)
    assert not promises.notice() and promises.watch(0, 0.0) is False
    assert not lanes.looks and not walked


def test_what_was_promised_is_walked_through_once_and_found() -> None:
    peer = Peer()
    lanes = Lanes(peer)
    lanes.comes = 0.2e-3
    promises, walked = made(lanes)
    assert promises.notice() and walked == [peer]
    assert promises.watch(0, 0.0) and lanes.now == lanes.comes
    promises.kept()
    peer.lane_in.wake_hinted = False
    assert promises.watch(0, 0.0) is False and not peer.lane_in.cleared


def test_it_is_noticed_once() -> None:
    promises, walked = made(Lanes(Peer()))
    assert promises.notice() and not promises.notice()
    assert len(walked) == 1


def test_a_promise_that_is_not_kept_costs_its_time_and_no_more() -> None:
    peer = Peer()
    lanes = Lanes(peer)
    promises, _ = made(lanes)
    assert promises.notice()
    assert not promises.watch(0, 0.0)
    assert 0 < lanes.now < 1e-3 and peer.lane_in.cleared == 1


def test_large_pages_are_waited_for_longer_and_the_way_is_kept_warm() -> None:
    lanes = Lanes(Peer())
    lanes.comes = 10e-3
    promises, walked = made(lanes, nbytes=64 << 20)
    assert promises.notice() and promises.watch(0, 0.0) and lanes.now == lanes.comes
    assert len(walked) > 10


def test_what_came_while_nobody_looked_is_seen_though_its_time_is_over() -> None:
    lanes = Lanes(Peer())
    promises, _ = made(lanes)
    assert promises.notice()  # its wake pipe is empty from now on
    lanes.now, lanes.comes = 5.0, 4.0
    assert promises.watch(0, 0.0)
