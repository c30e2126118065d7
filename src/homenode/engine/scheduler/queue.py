"""Orders over sequences: who waits, and whose deadline is next."""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

from homenode.engine.kv.sequence import Sequence

_Key = TypeVar("_Key", bound=tuple[float, ...])


class _Ordered(Generic[_Key]):
    """Sequences by key, smallest first, with removal from the middle. O(log n).

    A removed sequence is let go at once; only its key stays in the heap until it comes up, or until such keys are the
    majority.
    """

    def __init__(self) -> None:
        self._heap: list[_Key] = []
        self._members: dict[_Key, Sequence] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, key: _Key) -> bool:
        return key in self._members

    def add(self, key: _Key, sequence: Sequence) -> None:
        self._members[key] = sequence
        heapq.heappush(self._heap, key)
        if len(self._heap) > 2 * len(self._members) + 64:
            self._heap = sorted(self._members)

    def remove(self, key: _Key) -> None:
        del self._members[key]

    def first(self) -> tuple[_Key, Sequence] | None:
        while self._heap and self._heap[0] not in self._members:
            heapq.heappop(self._heap)
        return (self._heap[0], self._members[self._heap[0]]) if self._heap else None


class WaitingQueue:
    """Sequences that wait, by priority and then arrival. A preempted one comes back to its old place."""

    def __init__(self) -> None:
        self._ordered: _Ordered[tuple[int, float, int]] = _Ordered()
        self._num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._ordered)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.order in self._ordered

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all who wait."""
        return self._num_prompt_tokens

    def push(self, sequence: Sequence) -> None:
        """Add one that is not in the queue."""
        self._ordered.add(sequence.order, sequence)
        self._num_prompt_tokens += sequence.num_prompt

    def first(self) -> Sequence | None:
        """Who is next, still in the queue."""
        first = self._ordered.first()
        return first[1] if first else None

    def remove(self, sequence: Sequence) -> None:
        """Take out one that is in the queue."""
        self._ordered.remove(sequence.order)
        self._num_prompt_tokens -= sequence.num_prompt


class Deadlines:
    """Whose time is up, and when it will next be."""

    def __init__(self) -> None:
        self._ordered: _Ordered[tuple[float, int]] = _Ordered()

    def add(self, sequence: Sequence) -> None:
        """Watch a sequence, if it has a deadline."""
        if sequence.deadline is not None:
            self._ordered.add((sequence.deadline, sequence.order[2]), sequence)

    def remove(self, sequence: Sequence) -> None:
        """Watch it no longer: it is finished."""
        if sequence.deadline is not None:
            self._ordered.remove((sequence.deadline, sequence.order[2]))

    def next(self) -> float | None:
        """The earliest deadline."""
        first = self._ordered.first()
        return first[0][0] if first else None

    def first_passed(self, now: float) -> Sequence | None:
        """The sequence with the earliest deadline, if that is not after `now`."""
        first = self._ordered.first()
        return first[1] if first and first[0][0] <= now else None
