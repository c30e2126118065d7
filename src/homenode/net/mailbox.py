"""Messages from other threads for a thread that waits with epoll, without a lock or a wait for who leaves them."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """`put` and `wake` may be called from any thread and never wait; the rest is for the reader.

    The reader takes what came while `waiting`. Before it sleeps it says so (`may_sleep`): from then on until `awake`
    whoever has news writes to `fd`.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.waiting = False  # something came that the reader has not seen
        self._items: deque[T] = deque()
        self._asleep = False
        self._closed = False
        self._lock = threading.Lock()  # so that nothing is written to a descriptor that has become another's

    def put(self, item: T) -> None:
        """Leave a message."""
        self._items.append(item)
        self.wake()

    def leave(self, item: T) -> None:
        """The same without waking the reader."""
        self._items.append(item)
        self.waiting = True

    def wake(self) -> None:
        """Wake the reader without one."""
        # before the look at `_asleep`: the reader writes and looks the other way round, so one of the two notices
        self.waiting = True
        if self._asleep:
            with self._lock:
                if not self._closed:
                    os.eventfd_write(self.fd, 1)

    def may_sleep(self) -> bool:
        """Tell whether nothing waits; then the reader is woken by `fd` until it says that it is awake."""
        self._asleep = True
        if self.waiting:
            self._asleep = False
        return self._asleep

    def awake(self) -> None:
        """The reader has slept."""
        self._asleep = False

    def seen(self) -> None:
        """`fd` was readable: make it quiet. It may be so once more for something taken already, when a writer was
        late."""
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            pass

    def look(self) -> bool:
        """Tell whether there are messages; a bare `wake` has been heard."""
        self.waiting = False
        if self._items:
            self.waiting = True
        return self.waiting

    def take(self) -> list[T]:
        """All messages, oldest first. What comes from here on sets `waiting` again."""
        self.waiting = False
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
