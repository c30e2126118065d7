"""Signals about hand-overs that have ended: what to answer, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

End = Literal["done", "expired", "called off"]


class RecentEnds:
    """How the last `most` hand-overs ended. Asking a million times about one, or about others, stores nothing."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ends: OrderedDict[int, tuple[bytes, End]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ends)

    def add(self, pull_id: int, incarnation: bytes, end: End) -> None:
        self._ends[pull_id] = (incarnation, end)
        if len(self._ends) > self._most:
            self._ends.popitem(last=False)

    def how(self, pull_id: int) -> tuple[bytes, End] | None:
        """With the process it was with; None if it was never heard of, or long ago."""
        return self._ends.get(pull_id)


class ReleasedTickets:
    """Tickets given up before they were heard of; the last `most`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tickets: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, ticket: str) -> None:
        self._tickets[ticket] = None
        self._tickets.move_to_end(ticket)
        if len(self._tickets) > self._most:
            self._tickets.popitem(last=False)

    def take(self, ticket: str) -> bool:
        """Whether it was given up; asked once."""
        return self._tickets.pop(ticket, 0) is None
