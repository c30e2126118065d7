"""What the workers of a pipeline say of a step becomes one result, with the seconds of the slowest stage."""

from __future__ import annotations

import itertools

import pytest

from homenode.engine.channels.messages import WorkerStepDone
from homenode.engine.executor.in_flight import StepsInFlight
from homenode.engine.step import StepResult


def said(number: int, seconds: float) -> WorkerStepDone:
    return WorkerStepDone(StepResult(number, [], seconds=seconds))


@pytest.mark.parametrize("seconds", list(itertools.permutations([0.1, 0.2, 0.4])))
def test_a_step_took_as_long_as_its_slowest_stage(seconds: tuple[float, ...]) -> None:
    steps = StepsInFlight([0, 1, 2])
    for number in range(3):
        steps.submit(number, 0.0)
    for number in range(3):
        results = [steps.done(worker, said(number, seconds[worker]), 1.0) for worker in range(3)]
        assert results[:2] == [None, None] and results[2] is not None
        assert (results[2].number, results[2].seconds) == (number, 0.4)
    assert steps.in_flight == 0 and steps.oldest is None
    assert steps.busy == pytest.approx([3 * each for each in seconds])


@pytest.mark.parametrize("all_done", [False, True])
def test_a_stage_that_is_heard_late_keeps_nothing_back(all_done: bool) -> None:
    """Where all have to be done its seconds count, too; else the result is given before."""
    steps = StepsInFlight([0, 0, 1, 1], all_done)
    steps.submit(7, 0.0)
    assert steps.done(1, said(7, 9.0), 1.0) is None  # not the first rank of its stage: it waited for that one
    results = [steps.done(worker, said(7, 0.1 * (3 - worker)), 1.0) for worker in (2, 3, 0)]
    (result,) = [each for each in results if each is not None]
    assert result.seconds == pytest.approx(0.3 if all_done else 0.1)
    assert (results[0] is None) == all_done
    assert steps.in_flight == 0 and steps.oldest is None


def test_steps_that_are_lost_are_forgotten() -> None:
    steps = StepsInFlight([0, 1])
    steps.submit(1, 0.0)
    assert steps.done(0, said(1, 5.0), 0.5) is None
    steps.clear(1.0)
    assert steps.done(0, said(1, 5.0), 1.0) is None  # a late word of a step that is lost
    steps.submit(2, 1.0)
    assert steps.done(0, said(2, 0.1), 2.0) is None
    result = steps.done(1, said(2, 0.2), 2.0)
    assert result is not None and result.seconds == 0.2
