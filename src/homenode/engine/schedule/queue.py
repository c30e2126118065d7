"""Orders over sequences: who waits, and whose deadline is next."""

from __future__ import annotations

import heapq

from homenode.engine.schedule.sequence import Sequence


class WaitingQueue:
    """Sequences that wait, by priority and then arrival. A preempted one comes back to its old place. O(log n)."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, float, int], Sequence]] = []
        self._waiting: set[int] = set()  # running numbers; entries of the heap that are not in here were removed
        self._num_prompt_tokens = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all who wait."""
        return self._num_prompt_tokens

    def push(self, sequence: Sequence) -> None:
        """Add one that is not in the queue."""
        heapq.heappush(self._heap, (sequence.order, sequence))
        self._waiting.add(sequence.order[2])
        self._num_prompt_tokens += sequence.num_prompt

    def first(self) -> Sequence | None:
        """Who is next, still in the queue."""
        while self._heap and self._heap[0][1].order[2] not in self._waiting:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def remove(self, sequence: Sequence) -> None:
        """Take out one that is in the queue. Only the first ever comes back, so that no outdated entry can come to life again."""
        self._waiting.remove(sequence.order[2])
        self._num_prompt_tokens -= sequence.num_prompt
        self.first()

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.order[2] in self._waiting


class Deadlines:
    """The next deadline of many sequences. O(log n)."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Sequence]] = []

    def add(self, sequence: Sequence) -> None:
        """Watch a sequence that has a deadline."""
        if sequence.deadline is not None:
            heapq.heappush(self._heap, (sequence.deadline, sequence.order[2], sequence))

    def next(self) -> float | None:
        """The earliest deadline of an unfinished sequence."""
        while self._heap and self._heap[0][2].finished:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float) -> list[Sequence]:
        """Remove and return the unfinished sequences whose deadline is not after `now`."""
        late = []
        while (deadline := self.next()) is not None and deadline <= now:
            late.append(heapq.heappop(self._heap)[2])
        return late
