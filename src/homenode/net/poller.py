"""Descriptors that one thread waits for, each with what is to be done about its events."""

from __future__ import annotations

import select
from collections.abc import Callable

Handler = Callable[[int, float], None]  # of the events, and now


class Poller:
    """An epoll descriptor with a handler for each descriptor in it."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}

    def watch(self, fd: int, handler: Handler, events: int = select.EPOLLIN) -> None:
        """Have `handler(events, now)` called when there are such events."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Other events of a descriptor that is watched."""
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """No more of them; nothing happens for one that is not watched."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def fileno(self) -> int:
        """A descriptor that can be read from when `poll` has something."""
        return self._epoll.fileno()

    def poll(self, timeout: float) -> list[tuple[int, int]]:
        """Wait; descriptors and events."""
        return self._epoll.poll(timeout)

    def handle(self, fd: int, events: int, now: float) -> None:
        """Handle what `poll` told of one descriptor."""
        handler = self._handlers.get(fd)
        if handler is not None:  # else it was closed a moment ago
            handler(events, now)

    def close(self) -> None:
        """Give the descriptor back."""
        self._epoll.close()
