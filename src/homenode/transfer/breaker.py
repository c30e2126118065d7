"""The circuit breaker of one receiver: after it had no room, nothing is offered for a while, then one offer tries it
out."""

from __future__ import annotations

from typing import Literal

Verdict = Literal["go", "wait", "refuse"]


class PeerBreaker:
    """Closed (all may go), open (all are refused), half open (one goes as the probe, the others wait for how it
    fares)."""

    def __init__(self, ttl: float) -> None:
        """`ttl`: seconds it stays open after a failure; with 0 it never opens."""
        self._ttl = ttl
        self._open_until: float | None = None  # None: closed
        self._probing: str | None = None

    def ask(self, ticket: str, now: float) -> Verdict:
        """May this one go? Changes nothing."""
        if self._open_until is None:
            return "go"
        if now < self._open_until:
            return "refuse"
        return "go" if self._probing in (None, ticket) else "wait"

    def go(self, ticket: str) -> None:
        """It goes; if the breaker is half open, as the probe."""
        if self._open_until is not None:
            self._probing = ticket

    @property
    def open(self) -> bool:
        """Open or half open."""
        return self._open_until is not None

    def left(self, now: float) -> float:
        """Seconds until something may go again."""
        return 0.0 if self._open_until is None else max(self._open_until - now, 0.0)

    def failed(self, now: float, at_least: float = 0.0) -> None:
        """There was no room. `at_least`: what the receiver asked for; not believed beyond 8 times our own time."""
        self._probing = None
        if self._ttl > 0:
            self._open_until = now + max(self._ttl, min(at_least, 8 * self._ttl))

    def succeeded(self) -> None:
        self._open_until = None
        self._probing = None

    def spared(self, ticket: str) -> None:
        """This one ended without an answer; if it was the probe, the next is."""
        if self._probing == ticket:
            self._probing = None
