"""One row of each text's rows: which count, sums over steps, and what is no number."""

from __future__ import annotations

import numpy as np
import pytest

from homenode.engine.step import StepItem
from homenode.engine.worker.pooler import Pooler, pooled_rows
from homenode.model.pooling import POOLING_KINDS, PoolingKind
from homenode.model.weights.pooling_head import LoadedHeadLayer

ROWS = np.random.default_rng(1).standard_normal((9, 4)).astype(np.float32)


def in_chunks(kind: PoolingKind, cuts: list[int]) -> bytes:
    """The vector of a text whose rows come in several steps, between another text's."""
    pooler, found = Pooler(kind, ()), []
    for start, end in zip([0, *cuts], [*cuts, len(ROWS)], strict=True):
        items = [StepItem(7, 0, 2, [], 1), StepItem(3, start, end - start, [], end == len(ROWS))]
        rows = np.concatenate([np.ones((2, 4), np.float32), ROWS[start:end]])
        chosen = pooled_rows(kind, items, np.array([0, 2, 2 + end - start], np.int32))
        found += [each.values for each in pooler.take(rows[chosen], items) if each.seq == 3]
    (vector,) = found
    return vector


@pytest.mark.parametrize("kind", POOLING_KINDS)
@pytest.mark.parametrize("cuts", [[], [1], [4], [8], [2, 3, 7]])
def test_how_a_text_is_cut_changes_no_bit(kind: PoolingKind, cuts: list[int]) -> None:
    vector = in_chunks(kind, cuts)
    assert vector == in_chunks(kind, [])
    wanted = {"mean": ROWS.astype(np.float64).mean(0), "cls": ROWS[0], "last": ROWS[-1]}[kind]
    np.testing.assert_allclose(np.frombuffer(vector, "<f4"), wanted, rtol=1e-6)


def test_what_is_no_number_has_no_vector() -> None:
    rows = ROWS.copy()
    rows[2, 1] = np.nan
    (found,) = Pooler("mean", ()).take(rows, [StepItem(1, 0, 9, [], 1)])
    assert found.values == b""


def test_a_text_that_ended_is_forgotten() -> None:
    pooler = Pooler("mean", ())
    pooler.take(ROWS[:3], [StepItem(1, 0, 3, [], 0)])
    pooler.end(1)
    (found,) = pooler.take(ROWS[3:], [StepItem(1, 0, 6, [], 1)])
    np.testing.assert_allclose(np.frombuffer(found.values, "<f4"), ROWS[3:].mean(0), rtol=1e-6)


def test_rows_go_through_the_head() -> None:
    matrix = np.arange(8, dtype=np.float32).reshape(2, 4)
    layer = LoadedHeadLayer(matrix, np.array([1.0, -1.0], np.float32), "tanh", None, 1e-5)
    (found,) = Pooler("cls", (layer,)).take(ROWS[:1], [StepItem(1, 0, 5, [], 1)])
    wanted = np.tanh(matrix @ ROWS[0] + layer.bias)
    np.testing.assert_allclose(np.frombuffer(found.values, "<f4"), wanted, rtol=1e-6)
