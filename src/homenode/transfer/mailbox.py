"""Messages from other threads to one that sleeps in epoll."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """`put` and `wake` may be called from any thread and never wait; `take` is for the reader, which sleeps on `fd`."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._items: deque[T] = deque()
        self._awake = False  # a wake-up is under way that the reader has not seen
        self._closed = False
        self._lock = threading.Lock()  # so that nothing is written to a descriptor that has become another's

    def put(self, item: T) -> None:
        """Leave a message."""
        self._items.append(item)
        self.wake()

    def wake(self) -> None:
        """Wake the reader without one."""
        if self._awake:
            return
        with self._lock:
            if not self._closed:
                self._awake = True
                os.eventfd_write(self.fd, 1)

    def seen(self) -> None:
        """The reader is awake; what is put from here on wakes it again. To be called before `take`."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass
        self._awake = False

    def take(self) -> list[T]:
        """All messages, oldest first."""
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def close(self) -> None:
        """Give the descriptor back; later messages wake nobody."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.fd)
