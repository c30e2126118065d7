"""The table of activation scales in docs/models.md is what was measured, and the modes differ as they must."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.activation_scales import MODES, Loss, cells
from tests.paths import ROOT


def test_the_page_says_what_was_measured() -> None:
    measured = json.loads((ROOT / "docs/activation-scales.json").read_text(encoding="utf-8"))
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert f"over {measured['tokens']} tokens" in page
    for loss in measured["losses"]:
        assert f"| {' | '.join(cells(Loss(**loss)))} |" in page
    assert [loss["scale_for"] for loss in measured["losses"]] == [*MODES, *MODES]


@pytest.mark.parametrize(("mode", "scales"), list(zip(MODES, (32, 32, 256, 600), strict=True)))
def test_an_error_is_at_most_half_a_step_of_the_largest_that_shares_the_scale(mode: str, scales: int) -> None:
    x = np.random.default_rng(3).standard_normal((5, 600)).astype(np.float32)
    x[2, 7] = 100.0
    error = np.abs(MODES[mode](x) - x)
    for first in range(0, 600, scales):
        most = np.abs(x[:, first : first + scales]).max(axis=1, keepdims=True) / 127
        room = 1.13 if "eighths" in mode else 1.0  # a scale is rounded up by at most an eighth
        assert (error[:, first : first + scales] <= room * most / 2 + 1e-6).all()
    assert error[2].max() > 0.0
    assert np.array_equal(MODES[mode](np.zeros((1, 600), np.float32)), np.zeros((1, 600), np.float32))
