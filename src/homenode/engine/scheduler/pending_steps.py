"""The steps that were sent and not answered, oldest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.step import Step, StepItem


@dataclass(frozen=True, slots=True)
class PendingStep:
    """A step the worker has not answered yet: first the decodes, then parts of prompts. `prefill`: tokens of those."""

    step: Step
    decoding: list[Sequence]
    residencies: list[BlockAllocation]  # of those
    parts: list[tuple[Sequence, BlockAllocation, StepItem]]
    prefill: int

    @property
    def draws(self) -> bool:
        """It brings back tokens."""
        return bool(self.decoding) or any(item.sample for _, _, item in self.parts)

    @property
    def num_tokens(self) -> int:
        """Positions it computes."""
        return len(self.decoding) + self.prefill

    def drawing(self) -> list[int]:
        """The handles of those it draws a token for, in order."""
        handles = [residency.seq for residency in self.residencies]
        return handles + [item.seq for _, _, item in self.parts if item.sample] if self.parts else handles

    def lends(self) -> tuple[str, ...]:
        """Tickets of which it computes the last pages."""
        loans = [(sequence.loan, item) for sequence, _, item in self.parts if sequence.loan is not None]
        return tuple(loan.ticket for loan, item in loans if not loan.closed and item.start + item.count >= loan.tokens)

    def members(self) -> Iterator[tuple[Sequence, BlockAllocation]]:
        """All it computes, in order."""
        yield from zip(self.decoding, self.residencies, strict=True)
        yield from ((sequence, residency) for sequence, residency, _ in self.parts)


class PendingSteps:
    """A queue of them."""

    def __init__(self) -> None:
        self._flights: deque[PendingStep] = deque()

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def oldest(self) -> int:
        """The number of the step whose result comes next; -1: none is in flight."""
        return self._flights[0].step.number if self._flights else -1

    def lend_next(self) -> tuple[str, ...]:
        """Tickets of which the next result brings the last pages."""
        return self._flights[0].lends() if self._flights else ()

    @property
    def draw(self) -> bool:
        """Whether any of them brings back a token."""
        return any(flight.draws for flight in self._flights)

    @property
    def prefill(self) -> int:
        """Prompt tokens of all."""
        return sum(flight.prefill for flight in self._flights)

    def add(self, flight: PendingStep) -> None:
        """The newest."""
        self._flights.append(flight)

    def take(self) -> PendingStep:
        """The oldest, which is in flight no more."""
        return self._flights.popleft()

    def take_all(self) -> list[PendingStep]:
        """All of them, oldest first."""
        flights = list(self._flights)
        self._flights.clear()
        return flights
