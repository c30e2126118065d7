"""What is learned of the seconds of steps: from the first ones on, beside slow ones, and when cores come or go."""

from __future__ import annotations

import random

import pytest

from homenode.engine.scheduler.steps.row_costs import RowCosts
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import NO_LOAD, StepLoad

Machine = tuple[float, float, float, float, float]  # seconds of a step, and of its unit of load each
USUAL: Machine = (0.010, 0.003, 0.0022, 6e-7, 7e-7)
MACHINES: dict[str, Machine] = {
    "as expected": USUAL,
    "an accelerator": (0.020, 2e-5, 2e-5, 1e-9, 1e-9),
    "a slower one": (0.010, 5e-5, 1e-4, 1e-8, 1e-8),
    "a tiny model": (1e-4, 1e-3, 1e-3, 1e-7, 1e-7),
    "dear context": (0.010, 1e-3, 1e-3, 1e-5, 1e-6),
}


def loads(rng: random.Random) -> tuple[StepLoad, StepLoad]:
    count, tokens = rng.choice([0, 1, 4, 16]), rng.choice([0, 48, 96, 160])
    read = count * rng.randrange(1000)
    decodes = StepLoad(count, count, read, read, count) if count else NO_LOAD
    prompts = StepLoad.of_sequence(rng.randrange(4000), tokens or 32, 0) if tokens or not count else NO_LOAD
    return decodes, prompts


def seconds(decodes: StepLoad, prompts: StepLoad, machine: Machine = USUAL) -> float:
    base, decoded, prompt, read, attended = machine
    of_decodes = decoded * decodes.tokens + read * decodes.read
    return base + of_decodes + prompt * prompts.tokens + attended * prompts.attended


def errors(
    costs: StepCosts,
    rng: random.Random,
    steps: int,
    slow: float = 0.0,
    speed: float = 1.0,
    machine: Machine = USUAL,
) -> list[float]:
    found = []
    for _ in range(steps):
        decodes, prompts = loads(rng)
        true = speed * seconds(decodes, prompts, machine)
        if costs.known:
            found.append(abs(costs.seconds(decodes, prompts) / true - 1))
        costs.learn(
            decodes, prompts, true * (rng.choice([2, 4, 8]) if rng.random() < slow else rng.uniform(0.97, 1.03))
        )
    return sorted(found)


@pytest.mark.parametrize("seed", range(5))
def test_a_few_steps_tell_what_others_take(seed: int) -> None:
    rng, costs = random.Random(seed), StepCosts()
    errors(costs, rng, 30)
    found = errors(costs, rng, 100)
    assert found[90] < 0.15, found[-10:]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("slow", [0.0, 0.05])
def test_machines_of_other_kinds_are_learned_too(machine: Machine, slow: float) -> None:
    """Whatever a row takes of what reading the weights does; before, an accelerator's steps were off by a third."""
    found = []
    for seed in range(3):
        rng, costs = random.Random(seed), StepCosts()
        errors(costs, rng, 100, slow=slow, machine=machine)
        found += errors(costs, rng, 60, slow=slow, machine=machine)
    assert sorted(found)[len(found) // 2] < 0.07, sorted(found)[:: len(found) // 10]


@pytest.mark.parametrize("seed", range(5))
def test_single_slow_steps_change_little(seed: int) -> None:
    rng, costs = random.Random(seed), StepCosts()
    errors(costs, rng, 200)
    found = errors(costs, rng, 200, slow=0.1)
    assert found[100] < 0.12, found[100]


def test_a_busy_start_is_learned_from() -> None:
    """While what is expected is far off, a step that surprises is news; else a tenth of slow steps kept it off."""
    found = []
    for seed in range(10):
        rng, costs = random.Random(seed), StepCosts()
        errors(costs, rng, 30, slow=0.1)
        found.append(errors(costs, rng, 60, slow=0.1)[30])
    assert sum(found) / len(found) < 0.07, found


@pytest.mark.parametrize("speed", [2.0, 0.5])
def test_cores_that_come_or_go_are_followed(speed: float) -> None:
    rng, costs = random.Random(1), StepCosts()
    errors(costs, rng, 100)
    errors(costs, rng, 40, speed=speed)
    found = errors(costs, rng, 60, speed=speed)
    assert found[30] < 0.15, found


def mixed_step(costs: StepCosts, number: int, speed: float) -> None:
    """The next piece of a long prompt beside a reader."""
    reader, piece = StepLoad(1, 1, 500 + number, 500 + number), StepLoad.of_sequence(11 * number, 11, 0)
    costs.learn(reader, piece, speed * seconds(reader, piece))


@pytest.mark.parametrize("seed", range(4))
def test_what_no_step_tells_meanwhile_is_as_before_when_slow_whiles_are_over(seed: int) -> None:
    """While a long prompt is computed no step only decodes. Each slow while of a busy machine made decodes a third
    dearer than they are, one on top of the other, and with them the bound of a step, which is twice what they take.
    """
    rng, costs = random.Random(seed), StepCosts()
    errors(costs, rng, 60)
    reader = StepLoad(1, 1, 500, 500)
    for number in range(640):
        slow = 1.38 if number % 150 in range(100, 112) else 1.18 if number % 150 in range(112, 130) else 1.0
        mixed_step(costs, number, rng.uniform(0.95, 1.05) * slow)
    assert costs.seconds(reader) == pytest.approx(seconds(reader, NO_LOAD), rel=0.25)


@pytest.mark.parametrize("speed", [1.4, 2.0])
def test_a_slow_while_that_does_not_end_stays(speed: float) -> None:
    rng, costs = random.Random(4), StepCosts()
    errors(costs, rng, 60)
    for number in range(300):
        mixed_step(costs, number, rng.uniform(0.95, 1.05) * (speed if number > 100 else 1.0))
    reader = StepLoad(1, 1, 500, 500)
    assert costs.seconds(reader) == pytest.approx(speed * seconds(reader, NO_LOAD), rel=0.15)


def test_the_pace_follows_three_steps_and_no_single_one() -> None:
    rng, costs = random.Random(5), StepCosts()
    errors(costs, rng, 60)
    for number in range(20):
        mixed_step(costs, number, 1.0)
    usual = costs.pace
    mixed_step(costs, 20, 3.0)
    assert costs.pace == pytest.approx(usual, rel=0.05)
    for number in range(21, 24):
        mixed_step(costs, number, 1.25)
    assert costs.pace == pytest.approx(1.25, rel=0.08)
    for number in range(24, 27):
        mixed_step(costs, number, 0.7)
    assert costs.pace == 1.0, "a bound is not raised"


def test_what_fits_is_what_takes_the_time() -> None:
    rng, costs = random.Random(2), StepCosts()
    errors(costs, rng, 200)
    decodes = StepLoad(4, 4, 2000, 2000, 4)
    for start in (0, 1000, 6000):
        count = costs.fitting(decodes, NO_LOAD, start, 10_000, 0.15, scored=False)
        assert costs.seconds(decodes, StepLoad.of_sequence(start, count, 1)) <= 0.15
        assert costs.seconds(decodes, StepLoad.of_sequence(start, count + 2, 1)) > 0.149
    assert costs.fitting(decodes, NO_LOAD, 0, 5, 10.0, scored=False) == 5
    assert costs.fitting(decodes, NO_LOAD, 0, 5, 0.0, scored=False) == 0


@pytest.mark.parametrize("seed", range(3))
def test_what_rows_take_does_not_depend_on_who_asked_before(seed: int) -> None:
    """What was said is kept until anything is learned that changes it, and no longer."""
    rng, costs = random.Random(seed), StepCosts()
    asked, silent = RowCosts(costs), RowCosts(costs)
    for _ in range(200):
        decodes, prompts = loads(rng)
        took = seconds(decodes, prompts) * rng.uniform(0.9, 1.2)
        costs.learn(decodes, prompts, took)
        for each in (asked, silent):
            if decodes.tokens and not prompts.tokens:
                each.learn(decodes, took)
            elif decodes.tokens:
                each.fade(decodes.tokens)
        every = [asked.seconds(rows) for rows in range(1, 80)]
        if rng.random() < 0.1:
            assert every == [silent.seconds(rows) for rows in range(1, 80)]
