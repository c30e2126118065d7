"""Orders over sequences: who waits, and whose deadline is next."""

from __future__ import annotations

import heapq
import math
from typing import Generic, TypeVar

from homenode.engine.kv.sequence import Sequence
from homenode.engine.scheduler.fair_share import AGED_S, EQUAL_S, QUANTUM, KeyShares

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
    """Sequences that wait. Those of one API key by priority and then arrival; a preempted one comes back to its old
    place.

    Among keys the one goes first that has had least of the machine in the last minute; equals take turns by deficit
    round robin over the tokens of their prompts. Who has waited for `AGED_S` has every second turn, so that nobody
    waits for ever.
    """

    def __init__(self, shares: KeyShares) -> None:
        self._shares = shares
        self._queues: dict[str, _Ordered[tuple[int, float, int]]] = {}  # by key, in the order of turns
        self._deficits: dict[str, float] = {}  # prompt tokens that a key may still have in its turn
        self._num_prompt_tokens: dict[str, int] = {}  # by key
        self._turn_of_age = False

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.order in self._queues.get(sequence.request.key, ())

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all who wait."""
        return sum(self._num_prompt_tokens.values())

    def of_key(self, key: str) -> tuple[int, int, int]:
        """Sequences of `key` that wait, their prompt tokens, and how many keys there would be with one more of it."""
        waiting = len(self._queues[key]) if key in self._queues else 0
        return waiting, self._num_prompt_tokens.get(key, 0), len(self._queues) + (key not in self._queues)

    def push(self, sequence: Sequence) -> None:
        """Add one that is not in the queue."""
        key = sequence.request.key
        self._queues.setdefault(key, _Ordered()).add(sequence.order, sequence)
        self._deficits.setdefault(key, 0.0)
        self._num_prompt_tokens[key] = self._num_prompt_tokens.get(key, 0) + sequence.num_prompt

    def first(self) -> Sequence | None:
        """Who is next, still in the queue."""
        if len(self._queues) > 1:
            return self._of_several()[0]
        for queue in self._queues.values():
            if (first := queue.first()) is not None:
                return first[1]
        return None

    def admit(self, sequence: Sequence) -> None:
        """Take out the first, whose turn it is."""
        if len(self._queues) > 1:
            _, rounds, equals = self._of_several()
            for key in equals:
                self._deficits[key] += rounds * QUANTUM
            key = sequence.request.key
            self._deficits[key] -= sequence.num_prompt
            self._turn_of_age = not self._turn_of_age
            self._queues[key] = self._queues.pop(key)  # its next turn is after those of the others
        self.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Take out one that is in the queue."""
        key = sequence.request.key
        self._queues[key].remove(sequence.order)
        self._num_prompt_tokens[key] -= sequence.num_prompt
        if not len(self._queues[key]):
            del self._queues[key], self._deficits[key], self._num_prompt_tokens[key]

    def _of_several(self) -> tuple[Sequence, int, list[str]]:
        """Who is next, how many rounds of turns that takes, and the keys that have a part in these."""
        heads = {key: first[1] for key, queue in self._queues.items() if (first := queue.first()) is not None}
        oldest = min(heads.values(), key=lambda sequence: sequence.arrived)
        if self._turn_of_age and oldest.arrived + AGED_S <= self._shares.now:
            return oldest, 0, []
        costs = {key: self._shares.cost(key) for key in heads}
        least = min(costs.values())
        equals = [key for key, cost in costs.items() if cost <= least + EQUAL_S]
        rounds = {key: max(0, math.ceil((heads[key].num_prompt - self._deficits[key]) / QUANTUM)) for key in equals}
        chosen = min(equals, key=rounds.__getitem__)
        return heads[chosen], rounds[chosen], equals


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
