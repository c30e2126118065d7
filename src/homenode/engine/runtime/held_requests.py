"""Requests that wait for their grammar before the scheduler hears of them: a step never waits for a grammar that is
being made, which may take seconds the first time, with everybody who reads along.
"""

from __future__ import annotations

from collections.abc import Callable

from homenode.engine.request import Request

LONGEST_HOLD_S = 10.0  # after which a step may wait for the grammar


class HeldRequests:
    """Requests that are held, in the order in which they came. For the thread of the engine's loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._held: dict[int, tuple[float, Request]] = {}  # by id, until when, and what

    def hold(self, request: Request) -> None:
        """Keep it until it is released, or its time is over."""
        self._held[request.id] = (self._clock() + LONGEST_HOLD_S, request)

    def release(self, request_id: int) -> list[Request]:
        """The request with this id, if it is held."""
        found = self._held.pop(request_id, None)
        return [] if found is None else [found[1]]

    def release_all(self) -> list[Request]:
        """Every one."""
        held, self._held = self._held, {}
        return [request for _, request in held.values()]

    def release_due(self) -> list[Request]:
        """Return those whose time is over."""
        now = self._clock()
        due = [request.id for until, request in self._held.values() if until <= now]
        return [request for each in due for request in self.release(each)]

    def next_due(self) -> float | None:
        """Return when the time of the first of them is over."""
        return next((until for until, _ in self._held.values()), None)
