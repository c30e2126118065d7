"""The steps that are on their way through the workers, what each of them has said of them, and whom that leaves to
blame. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from homenode.engine.channels.messages import WorkerStepDone
from homenode.engine.step import StepResult


class StepsInFlight:
    """Steps in flight. `stage_of`: the stage of each worker; `reporter`: the one whose results count, rank 0 of the
    last stage.

    Seconds: `busy` those that the first rank of each stage computed; `active` those in which any step was in flight.
    What a stage did not compute of the active time it waited: for the stages before it, for requests, or for the way
    back (a bubble). A result has the seconds of the slowest stage, which a pipeline is as fast as.
    """

    def __init__(self, stage_of: Sequence[int], all_done: bool = False) -> None:
        """`all_done`: a step has its result when nobody computes any of it any more, and not as soon as that
        is known.
        """
        self._stage_of, self._all_done = stage_of, all_done
        self._waiting: dict[int, StepResult] = {}  # results of steps that others still compute
        self.reporter = stage_of.index(stage_of[-1])
        self._first_ranks = {stage_of.index(stage): stage for stage in stage_of}
        # Step -> workers that are done with it, one way or the other; in the order of the steps.
        self._answered: dict[int, set[int]] = {}
        self._slowest: dict[int, float] = {}  # of the same steps: the seconds of the slowest stage so far
        self._results = 0  # of the steps in flight, how many have their result
        self.busy = [0.0] * (stage_of[-1] + 1)
        self.steps = 0  # that have their result
        self._active, self._since = 0.0, 0.0

    @property
    def in_flight(self) -> int:
        """Steps that wait for their result."""
        return len(self._answered) - self._results

    @property
    def oldest(self) -> int | None:
        """The oldest step that a worker has not said anything of."""
        return next(iter(self._answered), None)

    def active(self, now: float) -> float:
        """Seconds in which steps were in flight."""
        return self._active + (now - self._since if self.in_flight else 0.0)

    def submit(self, number: int, now: float) -> None:
        """A step is given to all workers."""
        if not self.in_flight:
            self._since = now
        self._answered[number] = set()
        self._slowest[number] = 0.0

    def done(self, worker: int, done: WorkerStepDone, now: float) -> StepResult | None:
        """A worker is done with a step; its result if this is the one to give it."""
        number = done.result.number
        if worker in self._first_ranks:
            self.busy[self._first_ranks[worker]] += done.result.seconds
            if number in self._slowest:
                self._slowest[number] = max(self._slowest[number], done.result.seconds)
        if worker == self.reporter:
            if self.in_flight == 1:
                self._active += now - self._since
            self.steps += 1
            self._results += 1
            self._waiting[number] = done.result
        alone = (
            self._all_done and number in self._answered and len(self._answered[number] | {worker}) < len(self._stage_of)
        )
        slowest = self._slowest.get(number, 0.0)
        self.answered(worker, number)
        if alone or (result := self._waiting.pop(number, None)) is None:
            return None
        return msgspec.structs.replace(result, seconds=slowest) if slowest > result.seconds else result

    def answered(self, worker: int, number: int) -> None:
        """A worker has nothing more to do with a step."""
        if number in self._answered:
            self._answered[number].add(worker)
            self._tidy()

    def silent(self, number: int) -> list[int]:
        """Workers that have said nothing of a step."""
        answered = self._answered.get(number, set())
        return [worker for worker in range(len(self._stage_of)) if worker not in answered]

    def clear(self, now: float) -> None:
        """All of them are lost."""
        if self.in_flight:
            self._active += now - self._since
        self._answered.clear()
        self._slowest.clear()
        self._waiting.clear()
        self._results = 0

    def _tidy(self) -> None:
        """Forget steps that everybody is done with."""
        while self._answered:
            number = next(iter(self._answered))
            if len(self._answered[number]) < len(self._stage_of):
                return
            del self._answered[number], self._slowest[number]
            self._results -= 1
