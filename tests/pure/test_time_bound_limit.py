"""How long a step may take, by what it holds and what is in flight."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.engine.request import Urgency
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import NO_LOAD, StepLoad
from homenode.engine.scheduler.steps.time_bound import ALIGNMENT, LEAST_PIECE, TimeBound, time_limit

SECONDS = st.floats(0.001, 2.0)


@pytest.mark.parametrize(
    ("alone_s", "answering", "in_flight_s", "limit"),
    [
        (0.01, True, 0.1, 0.15),
        (0.10, True, 0.1, 0.20),  # twice what the decodes take alone
        (0.01, False, 0.0, 0.30),
        (0.01, False, 0.1, 0.20),  # what is in flight counts
        (0.01, False, 0.24, 0.0),  # too little is left: it is waited for
        (0.06, False, 0.15, 0.0),  # the weights would be read twice for little
        (0.06, False, 0.0, 0.30),
        (0.40, False, 0.0, 0.80),  # a large model: as much for prompts as for the weights
        (0.40, False, 0.5, 0.0),
    ],
)
def test_limits(alone_s: float, answering: bool, in_flight_s: float, limit: float) -> None:
    found = time_limit(alone_s, 0.15, answering=answering, in_flight_s=in_flight_s, stages=1)
    assert found == pytest.approx(limit)


@pytest.mark.parametrize(
    ("alone_s", "in_flight_s", "limit"),
    [(0.001, 0.0, 0.025), (0.001, 0.01, 0.015), (0.02, 0.02, 0.04), (0.001, 0.03, 0.0)],
)
def test_prompts_that_nobody_waits_for_have_a_sixth_with_what_is_in_flight(
    alone_s: float, in_flight_s: float, limit: float
) -> None:
    found = time_limit(alone_s, 0.15, answering=True, in_flight_s=in_flight_s, stages=1, urgency=Urgency.BACKGROUND)
    assert found == pytest.approx(limit)


@given(SECONDS, SECONDS, st.floats(0.0, 4.0))
def test_prompts_alone_pay_for_the_weights_and_get_on(alone_s: float, step_s: float, in_flight_s: float) -> None:
    """Whatever is in flight: all of it within the bound, no less for prompts than for reading the weights, and a step
    as soon as nothing is in flight.
    """
    limit = time_limit(alone_s, step_s, answering=False, in_flight_s=in_flight_s, stages=1)
    assert limit == 0.0 or limit + in_flight_s <= 2.0 * max(step_s, alone_s) + 1e-9
    assert limit == 0.0 or limit >= 2.0 * alone_s - 1e-9
    assert limit > 0.0 or in_flight_s > 0.0


@functools.cache
def learned(token_s: float, weights_s: float) -> StepCosts:
    """Costs of a machine that takes so long for the weights, for a token, and as much again for 4,000 positions."""
    costs = StepCosts()
    for turn in range(120):
        decodes = StepLoad(turn % 2, turn % 2, 100 * (turn % 2), 100 * (turn % 2), turn % 2)
        start, count = turn * 37 % 8000, 1 + turn % 40
        prompts = NO_LOAD if turn % 3 == 1 and decodes.tokens else StepLoad.of_sequence(start, count, 1)
        seconds = weights_s + token_s * (decodes.tokens + prompts.tokens + prompts.attended / 4000)
        costs.learn(decodes, prompts, seconds)
    return costs


@given(
    st.sampled_from([0.0005, 0.002, 0.007]),
    st.integers(1, 40),
    st.integers(0, 8000),
    st.sampled_from([2, 4, 6, 16, 32]),
)
def test_a_small_piece_makes_whole_tiles_with_the_rows_that_decode(
    token_s: float, rows: int, start: int, tile: int
) -> None:
    """As far as the tiles' tokens fit, the piece has three quarters of what would, and tiles are few."""
    costs, decodes = learned(token_s, 0.005), StepLoad(rows, rows, 100 * rows, 100 * rows, rows)
    limit = time_limit(costs.seconds(decodes), 0.15, answering=True, in_flight_s=0.0, stages=1)
    most = costs.fitting(decodes, NO_LOAD, start, 9000, limit, scored=False)
    bound = TimeBound(costs, limit, whole=False, tile_tokens=tile)
    count = bound.fitting(decodes, NO_LOAD, start, 9000, scored=False)
    whole = (rows + most) // tile * tile - rows
    if LEAST_PIECE <= most < 8 * tile and 4 * whole >= 3 * most:
        assert count == whole
    else:
        assert count == TimeBound(costs, limit, whole=False).fitting(decodes, NO_LOAD, start, 9000, scored=False)
    prompts = StepLoad.of_sequence(start, 16, 1)  # the tiles that a first prompt left are not cut again for another
    assert bound.fitting(decodes, prompts, 0, 9000, scored=False) % ALIGNMENT == 0


@given(
    st.sampled_from([0.0005, 0.007, 0.03]), st.sampled_from([0.005, 0.1]), st.integers(0, 8000), st.floats(0.05, 0.4)
)
def test_the_first_prompt_s_piece_is_as_near_to_the_bound_as_tokens_are(
    token_s: float, weights_s: float, start: int, step_s: float
) -> None:
    """A long context makes tokens dear: then pieces are of fewer tokens than kernels like best, not of more time."""
    costs, decodes = learned(token_s, weights_s), StepLoad(1, 1, 100, 100, 1)
    limit = time_limit(costs.seconds(decodes), step_s, answering=True, in_flight_s=0.0, stages=1)
    count = TimeBound(costs, limit, whole=False).fitting(decodes, NO_LOAD, start, 9000, scored=False)
    seconds = [costs.seconds(decodes, StepLoad.of_sequence(start, n, 1)) for n in (count, count + 1, count + ALIGNMENT)]
    token = seconds[1] - seconds[0]
    assert count >= LEAST_PIECE
    assert count == LEAST_PIECE or seconds[0] <= limit + 0.51 * token
    assert seconds[2] > limit, "a whole tile more would have fitted"
    assert costs.seconds(decodes, StepLoad.of_sequence(start, 2 * count + 2, 1)) > limit, "less than half was used"
    assert (start + count) % ALIGNMENT == 0 or (count < 2 * ALIGNMENT and seconds[1] > limit)
