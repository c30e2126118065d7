"""Limits of connections that come: how many may be greeting at once, from each address and in all, and how many may be
open."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from homenode.units import format_count


@dataclass
class HandshakeLimits:
    """Limits of connecting: bounds connections that have not greeted, for each address and in all, and all that
    have."""

    ungreeted_per_address: int = 16
    ungreeted: int = 64
    connections: int = 1024
    _waiting: Counter[str] = field(default_factory=Counter)
    _greeted: int = 0

    def enter(self, address: str) -> str | None:
        """A connection came from there: None, or why it is closed at once."""
        waiting = self._waiting.total()
        if self._waiting[address] >= self.ungreeted_per_address:
            return f"{format_count(self._waiting[address], 'connection')} from {address} have not greeted yet"
        if waiting >= self.ungreeted:
            return f"{format_count(waiting, 'connection has', 'connections have')} not greeted yet"
        if waiting + self._greeted >= self.connections:
            return f"{format_count(waiting + self._greeted, 'connection is', 'connections are')} open"
        self._waiting[address] += 1
        return None

    def greet(self, address: str) -> None:
        """One of those has greeted."""
        self._leave_waiting(address)
        self._greeted += 1

    def leave(self, address: str, greeted: bool) -> None:
        """One has ended."""
        if greeted:
            self._greeted -= 1
        else:
            self._leave_waiting(address)

    def _leave_waiting(self, address: str) -> None:
        self._waiting[address] -= 1
        if self._waiting[address] <= 0:
            del self._waiting[address]
