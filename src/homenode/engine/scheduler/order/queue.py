"""Orders over sequences: who waits, and whose deadline is next."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Generic, TypeAlias, TypeVar

from homenode.engine.kv.sequence import Sequence
from homenode.engine.request import Urgency
from homenode.engine.scheduler.order.fair_share import EQUAL_S, QUANTUM, KeyShares

_Key = TypeVar("_Key", bound=tuple[float, ...])
Rank: TypeAlias = tuple[Urgency, int]  # and the priority


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

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._members.values())

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


class _PromptLine:
    """The line of those who wait of one API key and rank: by what is left to compute, and by arrival."""

    def __init__(self) -> None:
        self.by_left: _Ordered[tuple[int, int, float, int]] = _Ordered()
        self.by_arrival: _Ordered[tuple[int, float, int]] = _Ordered()

    def add(self, sequence: Sequence) -> None:
        self.by_left.add((sequence.left, *sequence.order), sequence)
        self.by_arrival.add(sequence.order, sequence)

    def remove(self, sequence: Sequence) -> None:
        self.by_left.remove((sequence.left, *sequence.order))
        self.by_arrival.remove(sequence.order)

    @property
    def shortest(self) -> Sequence:
        first = self.by_left.first()
        assert first is not None  # a line in which nobody waits is dropped
        return first[1]

    @property
    def oldest(self) -> Sequence:
        first = self.by_arrival.first()
        assert first is not None
        return first[1]


class WaitingQueue:
    """Sequences that wait. Of one API key and rank the one with the least left to compute goes first; one whose
    answer was begun, and that was preempted, before all others.

    Among keys the one goes first that has had least of the machine in the last minute; equals take turns by deficit
    round robin over the tokens of their prompts. `oldest` tells who has been passed over.
    """

    def __init__(self, shares: KeyShares, left_of: Callable[[Sequence], int]) -> None:
        """`left_of`: tokens that one which comes would have to compute now."""
        self._shares = shares
        self._left_of = left_of
        self._lines: dict[str, dict[Rank, _PromptLine]] = {}  # by key, in the order of turns, and rank
        self._deficits: dict[str, float] = {}  # prompt tokens that a key may still have in its turn
        self._counts: dict[str, int] = {}  # by key
        self._num_prompt_tokens: dict[str, int] = {}  # by key

    def __len__(self) -> int:
        return sum(self._counts.values())

    def __iter__(self) -> Iterator[Sequence]:
        """Those of each key, by rank and arrival."""
        for lines in self._lines.values():
            for rank in sorted(lines):
                yield from lines[rank].by_arrival

    def __contains__(self, sequence: Sequence) -> bool:
        line = self._lines.get(sequence.request.key, {}).get(rank_of(sequence))
        return line is not None and sequence.order in line.by_arrival

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all who wait."""
        return sum(self._num_prompt_tokens.values())

    def of_key(self, key: str) -> tuple[int, int, int]:
        """Sequences of `key` that wait, their prompt tokens, and how many keys there would be with one more of it."""
        return (
            self._counts.get(key, 0),
            self._num_prompt_tokens.get(key, 0),
            len(self._lines) + (key not in self._lines),
        )

    def push(self, sequence: Sequence) -> None:
        """Add one that is not in the queue."""
        key = sequence.request.key
        sequence.left = self._left_of(sequence)
        lines = self._lines.setdefault(key, {})
        lines.setdefault(rank_of(sequence), _PromptLine()).add(sequence)
        self._deficits.setdefault(key, 0.0)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._num_prompt_tokens[key] = self._num_prompt_tokens.get(key, 0) + sequence.num_prompt

    def first(self) -> Sequence | None:
        """Return who is next, still in the queue."""
        if len(self._lines) > 1:
            return self._of_several()[0]
        for lines in self._lines.values():
            return _first_of(lines).shortest
        return None

    def oldest(self) -> Sequence | None:
        """Return who came first of the most urgent ones, still in the queue."""
        everybody = (line.oldest for lines in self._lines.values() for line in lines.values())
        return min(everybody, key=lambda each: (each.request.urgency, each.arrived), default=None)

    def oldest_like(self, sequence: Sequence) -> Sequence | None:
        """Return who came first of this one's key and rank, still in the queue."""
        line = self._lines.get(sequence.request.key, {}).get(rank_of(sequence))
        return None if line is None else line.oldest

    def admit(self, sequence: Sequence) -> None:
        """Take out the first, whose turn it is, or one that was passed over."""
        if len(self._lines) > 1:
            first, rounds, equals = self._of_several()
            for key in equals if first is sequence else ():
                self._deficits[key] += rounds * QUANTUM
            key = sequence.request.key
            self._deficits[key] -= sequence.num_prompt
            self._lines[key] = self._lines.pop(key)  # its next turn is after those of the others
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out one that is in the queue."""
        key, rank = sequence.request.key, rank_of(sequence)
        lines = self._lines[key]
        lines[rank].remove(sequence)
        if not len(lines[rank].by_arrival):
            del lines[rank]
        self._counts[key] -= 1
        self._num_prompt_tokens[key] -= sequence.num_prompt
        if not lines:
            del self._lines[key], self._deficits[key], self._counts[key], self._num_prompt_tokens[key]

    def _of_several(self) -> tuple[Sequence, int, list[str]]:
        """Return who is next, how many rounds of turns that takes, and the keys that have a part in these."""
        heads = {key: _first_of(lines).shortest for key, lines in self._lines.items()}
        urgency = min(head.request.urgency for head in heads.values())
        heads = {key: head for key, head in heads.items() if head.request.urgency == urgency}
        costs = {key: self._shares.cost(key) for key in heads}
        least = min(costs.values())
        equals = [key for key, cost in costs.items() if cost <= least + EQUAL_S]
        rounds = {key: max(0, math.ceil((heads[key].num_prompt - self._deficits[key]) / QUANTUM)) for key in equals}
        chosen = min(equals, key=rounds.__getitem__)
        return heads[chosen], rounds[chosen], equals


def rank_of(sequence: Sequence) -> Rank:
    """Return the place of a sequence among those of its key: the smallest goes first."""
    return sequence.request.urgency, sequence.request.priority


def _first_of(lines: dict[Rank, _PromptLine]) -> _PromptLine:
    return lines[min(lines)]


class Deadlines:
    """Deadlines: whose time is up, and when it will next be."""

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
