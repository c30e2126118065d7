"""One simulated engine: the real scheduler before stages that take the time a cost model says. Virtual time only;
pure."""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from homenode.engine.messages import EngineStats, Output
from homenode.engine.request import Request
from homenode.engine.scheduler.events import Emit, Event, RequestArrived, StepDone, Ticked
from homenode.engine.scheduler.scheduler import Scheduler
from homenode.engine.scheduler.steps.step_load import StepLoad
from homenode.engine.step import Advance, Step, StepItem, StepResult, num_accepted
from homenode.simulate.costs import StageCost
from homenode.simulate.disk import SimulatedDisk

TOKEN = 1  # all that is ever drawn: nothing ends before its number of tokens

_WRONG = 2


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step under way, and when its result is there."""

    at: float
    step: Step
    seconds: float


class SimulatedEngine:
    """Takes requests at times that never go back, and says when it has something to tell."""

    def __init__(
        self,
        scheduler: Scheduler,
        stages: Sequence[StageCost],
        back: float = 0.0,
        acceptance: float = 0.0,
        disk: SimulatedDisk | None = None,
    ) -> None:
        """`back`: seconds of the drawn tokens' way from the last stage to the first one's next step. `acceptance`: the
        chance of each drafted token behind right ones. `disk`: a store of the scheduler's; None: it has none.
        """
        self._acceptance, self._rng = acceptance, random.Random(0)
        self._disk = disk
        self._scheduler = scheduler
        self._stages = tuple(stages)
        self._chosen = self._stages[0].chosen
        self._back = back
        self._free = [0.0] * len(self._stages)
        self._flights: deque[_Flight] = deque()
        self.busy = 0.0  # seconds of computing, of the slowest stage of each step
        self.steps = 0

    @property
    def next_time(self) -> float:
        """Return when `advance` has something to do; infinite: never, without a further request."""
        deadline = self._scheduler.next_deadline()
        done = self._flights[0].at if self._flights else math.inf
        stored = math.inf if self._disk is None else self._disk.next_time
        return min(done, stored, math.inf if deadline is None else deadline)

    @property
    def statistics(self) -> EngineStats:
        """The scheduler's."""
        return self._scheduler.statistics()

    def submit(self, now: float, request: Request) -> list[Output]:
        """A request arrives."""
        return self._apply(now, RequestArrived(now, request))

    def advance(self) -> list[Output]:
        """Let happen what is next."""
        now = self.next_time
        if self._disk is not None and self._disk.next_time <= now:
            return self._apply(now, self._disk.take())
        if not self._flights or self._flights[0].at > now:
            return self._apply(now, Ticked(now))
        flight = self._flights.popleft()
        drawn = [self._advance(item) for item in flight.step.items if item.draws]
        return self._apply(now, StepDone(now, StepResult(flight.step.number, drawn, [], flight.seconds)))

    def _advance(self, item: StepItem) -> Advance:
        """Return the tokens that a step brought a sequence, and guesses of those that follow."""
        accepted = num_accepted(item.drafted, [TOKEN] * item.draws)
        guessed: list[int] = []
        while len(guessed) < item.expected:
            right = _WRONG not in guessed and self._rng.random() < self._acceptance
            guessed.append(TOKEN if right else _WRONG)
        return Advance(item.seq, [TOKEN] * accepted, drafted=tuple(guessed))

    def _apply(self, now: float, event: Event) -> list[Output]:
        if self._disk is not None:
            self._disk.now = now
        instructions = self._scheduler.apply(event)
        while (step := self._scheduler.next_step()) is not None:
            self._send(now, step)
        instructions += self._scheduler.instructions()
        return [output for told in instructions if isinstance(told, Emit) for output in told.outputs]

    def _send(self, now: float, step: Step) -> None:
        """A stage begins with a step when its rows are there and the step before is done."""
        load, at, longest = StepLoad.of(step, self._chosen), now, 0.0
        for number, stage in enumerate(self._stages):
            seconds = stage.seconds(load)
            longest = max(longest, seconds)
            at = self._free[number] = max(at, self._free[number]) + seconds
            if number + 1 < len(self._stages):
                at += stage.handing_on(load)
        self.busy += longest
        self.steps += 1
        self._flights.append(_Flight(at + self._back, step, longest))
