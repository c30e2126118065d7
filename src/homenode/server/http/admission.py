"""Admission: whether an application takes work, and how much it has: serving, draining, or without what it needs to
answer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from homenode.server.http.failures import ApiError
from homenode.server.http.request_load import RequestLoad
from homenode.server.keys.caller import caller


class RequestAdmission:
    """The count of requests in flight, and the drain that waits for them."""

    def __init__(self) -> None:
        self.lost: str | None = None  # why the engine is gone
        self._drain_ends: float | None = None  # time.monotonic() at which a drain gives up
        self._in_flight = 0
        self.load = RequestLoad()
        self.last_awaited = -math.inf  # time.monotonic() when somebody asked who waits for the answer
        self._idle = asyncio.Event()
        self._idle.set()

    def refused(self, reason: str) -> None:
        """A request was turned away."""

    @property
    def draining(self) -> bool:
        """No newcomers from here on."""
        return self._drain_ends is not None

    @property
    def in_flight(self) -> int:
        """Requests being answered."""
        return self._in_flight

    def drain(self, timeout_s: float) -> None:
        """Take no new work; what runs has `timeout_s` seconds."""
        self._drain_ends = time.monotonic() + timeout_s

    def check_available(self) -> None:
        """Raises ApiError 503 while draining and after the engine was lost."""
        if self.lost is not None:
            raise ApiError(503, "the engine is gone; the server is ending", code="engine_lost", retry_after_s=5)
        if self._drain_ends is not None:
            left = max(1.0, self._drain_ends - time.monotonic())
            raise ApiError(
                503, "the server is shutting down and takes no new requests", code="draining", retry_after_s=left
            )

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around the handling of one piece of work, its stream included. Raises ApiError 503 when none is taken, and
        KeyLimitError when its caller has used what its key allows.
        """
        try:
            self.check_available()
        except ApiError:
            self.refused("engine_lost" if self.lost is not None else "draining")
            raise
        if not caller().background:
            self.last_awaited = time.monotonic()
        self._in_flight += 1
        self.load.set(self._in_flight)
        self._idle.clear()
        try:
            with caller().request():
                yield
        finally:
            self._in_flight -= 1
            self.load.set(self._in_flight)
            if not self._in_flight:
                self._idle.set()

    async def idle(self, timeout_s: float) -> bool:
        """Waits until nothing is in flight; False after `timeout_s` seconds."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
