"""Connections on which no request is under way, in the order in which they became idle."""

from __future__ import annotations

from collections.abc import Callable


class IdleConnections:
    """The idle connections of one server. The one idle longest is closed first when descriptors run out."""

    def __init__(self) -> None:
        self._closers: dict[object, Callable[[], object]] = {}  # a dict keeps their order

    def __len__(self) -> int:
        return len(self._closers)

    def add(self, connection: object, close: Callable[[], object]) -> None:
        """`connection` is idle from now on; if it was so before, its order stays. `close` closes it at once."""
        self._closers.setdefault(connection, close)

    def remove(self, connection: object) -> None:
        """A request has begun on it, or it is closed."""
        self._closers.pop(connection, None)

    def close_oldest(self) -> bool:
        """Close the one that has been idle longest. False when none is idle."""
        oldest = next(iter(self._closers), None)
        if oldest is None:
            return False
        self._closers.pop(oldest)()
        return True
