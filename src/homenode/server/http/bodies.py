"""The memory that request bodies take: all of an application together, and each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from homenode.server.http.failures import ApiError


class Bodies:
    """Counts the bytes of all bodies being read, so that many large ones together cannot take the memory either."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    @contextmanager
    def lease(self) -> Iterator[Lease]:
        """Lease memory for the reading of one body; what was taken is given back at the end."""
        lease = Lease(self)
        try:
            yield lease
        finally:
            self.used -= lease.taken


class Lease:
    """The bytes of one body."""

    def __init__(self, bodies: Bodies) -> None:
        self._bodies, self.taken = bodies, 0

    def take(self, size: int) -> None:
        """Raises ApiError 503 when all bodies together are too large."""
        if self._bodies.used + size > self._bodies.limit:
            raise ApiError(
                503,
                "too many large request bodies at once",
                code="overloaded",
                retry_after_s=1,
                headers={"Connection": "close"},
            )
        self._bodies.used += size
        self.taken += size

    def give_back(self) -> None:
        """The body is not held any more."""
        self._bodies.used -= self.taken
        self.taken = 0
