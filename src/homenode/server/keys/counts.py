"""Counts of what was used under each key, in memory that all front processes of a server share.

The memory is an array of 64-bit integers: for each front a table, in it for each key a row, in it counters and a ring
of half seconds. A front writes to its own table only, and adds up all tables when it reads; so nobody waits for a lock
that a stopped or dead process would hold. A front enters what it takes before it looks at what others entered, and
takes it back where that is too much: of two that enter at the same moment at least one sees the other.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import Final

from homenode.host.bind.base.temporary import nameless_file
from homenode.server.keys.key_file import MOST_KEYS

TICKS_PER_SECOND: Final = 2
WINDOW_TICKS: Final = 60 * TICKS_PER_SECOND
_RING = 128  # ticks, more than a window
_ROWS = MOST_KEYS + 1
_WORD = 8  # bytes

RUNNING, REQUESTS, PROMPT_TOKENS, GENERATED_TOKENS = range(4)  # counters of a row
REFUSALS: Final = {"requests_per_minute": 4, "tokens_per_minute": 5, "concurrent_requests": 6}
_COUNTERS = 8
TICK, OF_REQUESTS, OF_TOKENS = range(3)  # of each entry of the ring
_ROW_WORDS = _COUNTERS + 3 * _RING
_TABLE_WORDS = _ROWS * _ROW_WORDS


class KeyCounts:
    """The tables of all fronts, and the one of this front, which has the place `slot` among `fronts`."""

    def __init__(self, fronts: int = 1, slot: int = 0, descriptor: int = -1) -> None:
        """`descriptor`: of memory as `shared_memory` makes it; -1: memory of this process alone."""
        self._memory = mmap.mmap(descriptor, fronts * _TABLE_WORDS * _WORD)
        self._words = memoryview(self._memory).cast("q")
        self._fronts, self._own = fronts, slot * _TABLE_WORDS
        for row in range(_ROWS):  # whoever had the place before has ended, and its requests with it
            if self._words[at := self._own + row * _ROW_WORDS + RUNNING]:
                self._words[at] = 0

    @staticmethod
    def shared_memory(fronts: int) -> int:
        """The descriptor of memory for the tables of so many fronts. OSError: the machine has none."""
        descriptor = nameless_file("homenode-keys")
        os.ftruncate(descriptor, fronts * _TABLE_WORDS * _WORD)
        return descriptor

    def add(self, row: int, counter: int, amount: int = 1) -> None:
        """Count on this front."""
        self._words[self._own + row * _ROW_WORDS + counter] += amount

    def total(self, row: int, counter: int) -> int:
        """Return what all fronts counted."""
        return sum(self._words[at + counter] for at in self._rows(row))

    def add_spent(self, row: int, field: int, tick: int, amount: int) -> None:
        """Enter requests (`OF_REQUESTS`) or tokens (`OF_TOKENS`) that are used at `tick`. Negative: give back what was
        entered at that tick.
        """
        at = self._own + row * _ROW_WORDS + _COUNTERS + tick % _RING * 3
        if self._words[at] != tick:
            if amount < 0:
                return
            self._words[at + OF_REQUESTS] = self._words[at + OF_TOKENS] = 0
            self._words[at] = tick
        self._words[at + field] += amount

    def spent(self, row: int, field: int, tick: int) -> int:
        """Return what all fronts used in the minute before `tick`, it included."""
        return sum(amount for _, amount in self._entries(row, field, tick))

    def free_at(self, row: int, field: int, tick: int, room: int) -> int:
        """The tick at which no more than `room` of what was used until `tick` counts any longer."""
        entries = sorted(self._entries(row, field, tick))
        left = sum(amount for _, amount in entries)
        for used_at, amount in entries:
            left -= amount
            if left <= room:
                return used_at + WINDOW_TICKS
        return tick

    def _entries(self, row: int, field: int, tick: int) -> Iterator[tuple[int, int]]:
        words, oldest = self._words, tick - WINDOW_TICKS
        for begin in self._rows(row):
            for at in range(begin + _COUNTERS, begin + _ROW_WORDS, 3):
                if oldest < words[at] <= tick and words[at + field]:
                    yield words[at], words[at + field]

    def _rows(self, row: int) -> range:
        begin = row * _ROW_WORDS
        return range(begin, begin + self._fronts * _TABLE_WORDS, _TABLE_WORDS)
