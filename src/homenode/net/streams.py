"""The streams over TLS of this process, whose last bytes are to be sent before it ends. Apart from what makes them, so
that a process without any does not load TLS."""

from __future__ import annotations

import atexit
import time
from typing import Protocol


class DrainedStream(Protocol):
    """A stream that carries bytes of its owner."""

    @property
    def idle(self) -> bool:
        """Return whether nothing that the owner wrote waits here."""


_live: set[DrainedStream] = set()


def add(stream: DrainedStream) -> None:
    """Have `drain` wait for this one."""
    _live.add(stream)


def discard(stream: DrainedStream) -> None:
    """It has ended."""
    _live.discard(stream)


def drain(seconds: float = 1.0) -> None:
    """Wait until what owners have written so far is sent, but no longer than that."""
    deadline = time.monotonic() + seconds
    while any(not each.idle for each in list(_live)) and time.monotonic() < deadline:
        time.sleep(0.001)


atexit.register(drain)
