"""An engine with one stage sends the steps, and tells the outputs, that it did before there were engines
with several.
"""

from __future__ import annotations

import pytest

from tests.examples import seeds
from tests.pure.recorded_schedules import KINDS, SEEDS, history, name_of, recorded


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_events_lead_to_the_same_steps(kind: str, lookahead: int) -> None:
    known = recorded()
    for seed in seeds(len(SEEDS)):
        for at, (now, before) in enumerate(
            zip(history(kind, lookahead, seed), known[name_of(kind, lookahead, seed)], strict=True)
        ):
            assert now == before, f"history {seed} differs from stretch {at} on"
