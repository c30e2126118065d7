"""Requests that other fronts gave to the engines, in the books of a router: so all fronts route with nearly the same
knowledge. Pure.

What is told of a process of an engine that is gone, and comes late, is no more than a name that nobody knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from homenode.engine.fronts.messages import Began, Booked, FrontLeft, Known, OfOthers, RequestEnded
from homenode.engine.fronts.numbers import front_of
from homenode.engine.router.router import RoutedRequest, Router


@dataclass(frozen=True, slots=True)
class _Entry:
    message: Booked
    routed: RoutedRequest


class RemoteLoad:
    """Keeps them in `router`, from what fronts tell."""

    def __init__(self, router: Router) -> None:
        self._router = router
        self._entries: dict[int, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def take(self, message: OfOthers) -> None:
        """A front has told this."""
        match message:
            case Booked(request, engine, work, digests):
                self._leave(request)
                if self._router.has(engine):
                    self._entries[request] = _Entry(message, self._router.book(engine, work, digests))
            case Began(request):
                if (entry := self._entries.get(request)) is not None:
                    self._router.began(entry.routed)
            case RequestEnded(request, added):
                entry = self._leave(request)
                if entry is not None and added is not None:
                    self._router.remember(entry.message.engine, [*entry.message.digests, *added])
            case Known(engine, digests):
                if self._router.has(engine):
                    self._router.remember(engine, digests)
            case FrontLeft(front):
                for request in [each for each in self._entries if front_of(each) == front]:
                    self._leave(request)

    def add(self, engine: int, num_blocks: int) -> None:
        """The engine is there, with empty memory; it may have been there before."""
        self.drop(engine)
        self._router.add(engine, num_blocks)

    def drop(self, engine: int) -> None:
        """The engine was lost, and with it what it had."""
        for request in [each for each, entry in self._entries.items() if entry.message.engine == engine]:
            self._leave(request)
        if self._router.has(engine):
            self._router.forget(engine)

    def all(self, engines: int) -> Iterator[OfOthers]:
        """All of it, for somebody who has just begun."""
        for engine in range(engines):
            if self._router.has(engine):
                yield Known(engine, self._router.known(engine))
        for entry in self._entries.values():
            yield entry.message
            if entry.routed.running:
                yield Began(entry.message.id)

    def _leave(self, request: int) -> _Entry | None:
        if (entry := self._entries.pop(request, None)) is not None:
            self._router.ended(entry.routed)
        return entry
