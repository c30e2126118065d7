"""What an engine's loop waits on: messages, and an agent's work meanwhile."""

from __future__ import annotations

import math
import os
import select
import threading
import time
from collections.abc import Iterator
from queue import Empty

import pytest

from homenode.engine.runtime.inbox import Inbox
from tests.waiting import PATIENCE_S, wait_until


class Chores:
    """Work that waits behind a descriptor, or is due."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.spare = -1.0
        self.done: list[int] = []
        self.resting = False
        self.watched = 0.0
        self.heard = 0

    def lead(self, epoll: select.epoll) -> None:
        epoll.register(self.fd, select.EPOLLIN)

    def watch(self, epoll: int) -> bool | None:
        return None

    def rehearse(self) -> bool:
        return False

    def hear(self) -> bool:
        self.heard += 1
        return False

    def rest(self) -> float:
        self.resting = True
        return self.spare

    def watches_until(self) -> float:
        return self.watched

    def roused(self) -> None:
        self.resting = False

    def work(self) -> None:
        assert not self.resting
        self.spare = -1.0
        try:
            self.done.append(os.eventfd_read(self.fd))
        except BlockingIOError:
            self.done.append(0)


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    yield inbox
    inbox.close()


def later(what: object) -> threading.Thread:
    thread = threading.Thread(target=what, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_messages_come_in_order_from_any_thread(inbox: Inbox) -> None:
    def put(who: int) -> None:
        for number in range(2000):
            inbox.put((who, number))

    threads = [later(lambda who=who: put(who)) for who in range(4)]
    got = [inbox.get(PATIENCE_S) for _ in range(8000)]
    for who in range(4):
        assert [number for one, number in got if one == who] == list(range(2000))  # type: ignore[misc]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert inbox.empty()


def test_it_is_empty_in_time(inbox: Inbox) -> None:
    begun = time.monotonic()
    with pytest.raises(Empty):
        inbox.get(0.02)
    assert 0.02 <= time.monotonic() - begun < 10
    with pytest.raises(Empty):
        inbox.get(0)


@pytest.mark.parametrize("watched", [0.0, math.inf])
def test_what_comes_meanwhile_is_worked_on_by_who_waits(inbox: Inbox, watched: float) -> None:
    chores = Chores()
    chores.watched = watched
    inbox.work_for(chores)

    def bring() -> None:
        os.eventfd_write(chores.fd, 7)
        wait_until(lambda: 7 in chores.done)
        inbox.put("message")

    thread = later(bring)
    assert inbox.get(PATIENCE_S) == "message"
    assert 7 in chores.done and not chores.resting
    thread.join(PATIENCE_S)


def test_what_is_due_is_done_in_time(inbox: Inbox) -> None:
    chores = Chores()
    inbox.work_for(chores)
    with pytest.raises(Empty):
        inbox.get(0.01)
    for spare in (0.01, 0.0):
        chores.spare, before = spare, len(chores.done)
        with pytest.raises(Empty):
            inbox.get(0.05)
        assert len(chores.done) > before


def test_a_reader_that_always_finds_a_message_works_in_between(inbox: Inbox) -> None:
    chores = Chores()
    inbox.work_for(chores)
    os.eventfd_write(chores.fd, 1)
    deadline = time.monotonic() + PATIENCE_S
    while 1 not in chores.done:
        inbox.put("more")
        inbox.put("and more")
        assert inbox.get(0) in ("more", "and more")
        assert time.monotonic() < deadline


def test_what_was_heard_comes_before_any_books(inbox: Inbox) -> None:
    """Two messages of one announcement, to a reader that slept for long: nothing is worked between the two."""

    class Slept(Chores):
        def rest(self) -> float:
            inbox._worked_at -= 3600.0
            return 0.0

        def hear(self) -> bool:
            inbox.leave("placed")
            inbox.leave("arrived")
            return True

    slept = Slept()
    inbox.work_for(slept)
    inbox._worked_at = time.monotonic()
    assert inbox.get(PATIENCE_S) == "placed" and inbox.get(PATIENCE_S) == "arrived"
    assert not slept.done
