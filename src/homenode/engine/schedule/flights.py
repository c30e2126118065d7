"""The steps that were sent and not answered, oldest first."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from homenode.engine.schedule.sequence import Residency, Sequence
from homenode.engine.schedule.step import Step, StepItem


@dataclass(frozen=True, slots=True)
class Flight:
    """A step the worker has not answered yet. `prefill`: how many of its tokens are of prompts; `draws`: it brings back tokens."""

    step: Step
    members: list[tuple[Sequence, Residency, StepItem]]
    prefill: int
    draws: bool


class Flights:
    """A queue of them."""

    def __init__(self) -> None:
        self._flights: deque[Flight] = deque()
        self.prefill = 0  # prompt tokens of all
        self._drawing = 0  # how many draw

    def __len__(self) -> int:
        return len(self._flights)

    @property
    def oldest(self) -> int:
        """The number of the step whose result comes next; -1: none is in flight."""
        return self._flights[0].step.number if self._flights else -1

    @property
    def draw(self) -> bool:
        """Whether any of them brings back a token."""
        return self._drawing > 0

    def add(self, flight: Flight) -> None:
        """The newest."""
        self._flights.append(flight)
        self.prefill += flight.prefill
        self._drawing += flight.draws

    def take(self) -> Flight:
        """The oldest, which is in flight no more."""
        flight = self._flights.popleft()
        self.prefill -= flight.prefill
        self._drawing -= flight.draws
        return flight

    def take_all(self) -> list[Flight]:
        """All of them, oldest first."""
        flights = list(self._flights)
        self.__init__()  # type: ignore[misc]
        return flights
