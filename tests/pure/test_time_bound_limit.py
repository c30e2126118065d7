"""How long a step may take, by what it holds and what is in flight."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.engine.scheduler.time_bound import time_limit

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


@given(SECONDS, SECONDS, st.floats(0.0, 4.0))
def test_prompts_alone_pay_for_the_weights_and_get_on(alone_s: float, step_s: float, in_flight_s: float) -> None:
    """Whatever is in flight: all of it within the bound, no less for prompts than for reading the weights, and a step
    as soon as nothing is in flight.
    """
    limit = time_limit(alone_s, step_s, answering=False, in_flight_s=in_flight_s, stages=1)
    assert limit == 0.0 or limit + in_flight_s <= 2.0 * max(step_s, alone_s) + 1e-9
    assert limit == 0.0 or limit >= 2.0 * alone_s - 1e-9
    assert limit > 0.0 or in_flight_s > 0.0
