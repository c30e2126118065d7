"""A text stream whose lines can be kept back for a while, so that they do not land in the middle of something else."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_LARGEST = 1 << 20  # characters kept back; more is dropped and counted


class HeldStream(io.TextIOBase):
    """Passes on what is written, but for what comes while it is held: that is passed on at the end of the hold.

    All methods may be called from any thread; holds may be within each other.
    """

    def __init__(self, to: TextIO, limit: int = _LARGEST) -> None:
        self._to, self._limit = to, limit
        self._lock = threading.Lock()  # around all of the following
        self._holds = 0
        self._kept: list[str] = []
        self._size = 0
        self._dropped = 0  # lines that found no room

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str, /) -> int:
        """Pass `text` on, or keep it, or drop it where too much is kept already. The number of characters."""
        with self._lock:
            if not self._holds:
                self._to.write(text)
            elif self._size + len(text) > self._limit:
                self._dropped += max(1, text.count("\n"))
            else:
                self._kept.append(text)
                self._size += len(text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream behind this one."""
        self._to.flush()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep back what is written, until the end of this context."""
        with self._lock:
            self._holds += 1
        try:
            yield
        finally:
            with self._lock:
                self._holds -= 1
                if not self._holds:
                    self._pass_on()

    def _pass_on(self) -> None:
        kept, dropped = self._kept, self._dropped
        self._kept, self._size, self._dropped = [], 0, 0
        for text in kept:
            self._to.write(text)
        if dropped:
            self._to.write(f"homenode: {dropped} lines of the log were dropped here, as too many came at a time\n")
        self._to.flush()
