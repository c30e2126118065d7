"""The inbox that an engine's loop waits on: messages from any thread, and meanwhile the agent's connections.

A thread that waits could as well do the agent's work: what comes from another engine is then told without one thread
having to wake another. The agent's own thread stands by.
"""

from __future__ import annotations

import math
import os
import select
import time
from queue import Empty
from typing import Protocol

from homenode.net.mailbox import Mailbox

_WORK, _SOMETHING = [-1], [-2]  # instead of descriptors: there is work; something came over one of them, or a lane
_MOST_ABSENT_S = 2e-3  # a reader that always finds a message works in between, so often


class PollableAgent(Protocol):
    """An agent whose work can be done by the thread that waits."""

    def lead(self, epoll: select.epoll) -> None:
        """The caller's thread does the work from now on, and sleeps there: what there is to read from when there is
        some is registered."""

    def rest(self) -> float:
        """Seconds until something is due, negative: nothing is; 0: there is work now. To be followed by `roused`."""

    def watch(self, epoll: int) -> bool | None:
        """Look for what probably comes, and at a descriptor of epoll: whether there is something. None: look yourself,
        until `watches_until`."""

    def rehearse(self) -> bool:
        """It was woken, and heard nothing: whether something was promised. `watch` will look for that."""

    def hear(self) -> bool:
        """Hear of what came past the descriptors; no more than that, as somebody waits for it. Whether there was
        something."""

    def watches_until(self) -> float:
        """Before that (time.monotonic) more will come, probably: to look for it is quicker than to be woken."""

    def roused(self) -> None:
        """Note that it sleeps no more."""

    def work(self) -> None:
        """Do what there is to do."""


class Inbox(Mailbox[object]):
    """A queue as `queue.SimpleQueue`, for one reader."""

    def __init__(self) -> None:
        super().__init__()
        self._epoll = select.epoll()
        self._epoll.register(self.fd, select.EPOLLIN)
        self._worker: PollableAgent | None = None
        self._worked_at = 0.0

    def work_for(self, worker: PollableAgent) -> None:
        """Let the caller, who is the reader, do its work from now on while it waits in `get`."""
        worker.lead(self._epoll)
        self._worker = worker

    def empty(self) -> bool:
        """Return whether no message waits."""
        return not self._items

    def get(self, timeout: float | None = None) -> object:
        """The oldest message. queue.Empty when there is none for so many seconds."""
        now = time.monotonic()
        ends = math.inf if timeout is None else now + timeout
        if self._worker is not None and now - self._worked_at > _MOST_ABSENT_S:
            self._work(self._worker)
        while not self.look():
            left = ends - time.monotonic()
            if left <= 0:
                raise Empty
            self._wait(-1.0 if left == math.inf else left)
        return self._items.popleft()

    def close(self) -> None:
        """Give the descriptors back; for when nobody reads any more."""
        self._epoll.close()
        super().close()

    def _wait(self, left: float) -> None:
        """Wait for a message or so long, or work for a while."""
        worker = self._worker
        if worker is None:
            self._sleep(left)
            return
        spare, came = worker.rest(), _WORK
        if spare:
            came = self._watch(worker) or self._sleep(left if spare < 0 else spare if left < 0 else min(left, spare))
        if worker.hear():
            self._worked_at = time.monotonic()  # what was heard comes before any books
        worker.roused()
        if self._items or (came is not _WORK and worker.rehearse()):
            return
        if came is _SOMETHING:
            came = self._came(0)
        if came != [self.fd]:
            self._work(worker)

    def _watch(self, worker: PollableAgent) -> list[int]:
        """Look, and let others run meanwhile."""
        if not self.may_sleep():
            return [self.fd]
        try:
            found = worker.watch(self._epoll.fileno())
        finally:
            self.awake()
        if found is not None:
            return _SOMETHING if found else []
        until = worker.watches_until()
        while time.monotonic() < until:
            if self.waiting:
                return [self.fd]
            if came := self._came(0):
                return came
            os.sched_yield()
        return []

    def _sleep(self, timeout: float) -> list[int]:
        if not self.may_sleep():
            return [self.fd]
        try:
            return self._came(timeout)
        finally:
            self.awake()

    def _came(self, timeout: float) -> list[int]:
        """Descriptors that something came over."""
        came = [fd for fd, _ in self._epoll.poll(timeout)]
        if self.fd in came:
            self.seen()
        return came

    def _work(self, worker: PollableAgent) -> None:
        worker.work()
        self._worked_at = time.monotonic()
