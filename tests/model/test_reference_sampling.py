"""The sampling oracle itself, by cases small enough to work out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from homenode.compute.ops import SamplingArrays
from homenode.compute.reference import ReferenceBackend
from homenode.compute.reference.sampling import kept, uniform

ROW = np.log(np.array([[0.1, 0.4, 0.2, 0.3]], np.float32))


def settings(rows: int = 1, **changes: Any) -> SamplingArrays:
    """Plain sampling for every row, with `changes`; `bias` and `seen` give row 0 lists of pairs and of triples."""
    bias, seen = changes.pop("bias", []), changes.pop("seen", [])
    lists: dict[str, Any] = {
        "bias_start": np.array([0] + [len(bias)] * rows, np.int32),
        "bias_token": np.array([b[0] for b in bias], np.int32),
        "bias_value": np.array([b[1] for b in bias], np.float32),
        "seen_start": np.array([0] + [len(seen)] * rows, np.int32),
        "seen_token": np.array([s[0] for s in seen], np.int32), "seen_count": np.array([s[1] for s in seen], np.int32),
    }  # fmt: skip
    return SamplingArrays.of(rows, **{"seed": 1, **changes, **lists})


def drawn(logits: Any, rows: int = 1, **changes: Any) -> list[int]:
    """Tokens drawn from `rows` copies of the logits, each with its own counter."""
    table = np.repeat(np.atleast_2d(np.asarray(logits, np.float32)), rows, axis=0)
    tokens = ReferenceBackend().sample(table, settings(rows, counter=np.arange(rows), **changes)).tokens
    return [int(t) for t in tokens]


def test_uniform_is_splitmix64() -> None:
    """The first outputs of SplitMix64 from seed 1234567, as its author published them."""
    published = (6457827717110365317, 3203168211198807973, 9817491932198370423)
    assert [uniform(1234567, i) for i in range(3)] == [(z >> 11) * 2.0**-53 for z in published]


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert drawn([1, 3, 3, 2], temperature=0) == [1]
    assert drawn(ROW, rows=50, temperature=1e-6) == [1] * 50


def test_frequencies_follow_the_probabilities() -> None:
    found = np.bincount(drawn(ROW, rows=4000), minlength=4) / 4000
    assert np.abs(found - [0.1, 0.4, 0.2, 0.3]).max() < 0.03


def test_temperature_sharpens() -> None:
    squared = np.array([0.1, 0.4, 0.2, 0.3]) ** 2
    found = np.bincount(drawn(ROW, rows=4000, temperature=0.5), minlength=4) / 4000
    assert np.abs(found - squared / squared.sum()).max() < 0.03


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((0, 1.0, 0.0), [1, 3, 2, 0]), ((2, 1.0, 0.0), [1, 3]), ((9, 1.0, 0.0), [1, 3, 2, 0]), ((0, 0.69, 0.0), [1, 3]),
        ((0, 0.71, 0.0), [1, 3, 2]), ((0, 0.0, 0.0), [1]), ((0, 1.0, 0.6), [1, 3]), ((0, 1.0, 1.0), [1]),
        ((3, 0.5, 0.0), [1, 3]),
        ((2, 0.56, 0.0), [1]),
    ],
)  # fmt: skip
def test_what_top_k_top_p_and_min_p_keep(settings: tuple[int, float, float], expected: list[int]) -> None:
    """The last case: among the two kept by top-k the first has 4/7 of the probability, which reaches 0.56."""
    assert kept(ROW[0].astype(np.float64), *settings).tolist() == expected


def test_what_top_n_sigma_keeps() -> None:
    """Of 0, 1, 2, 3 the standard deviation is 1.118; a forbidden token counts for nothing."""
    row = [0.0, 1.0, 2.0, 3.0, -np.inf]
    for n, wanted in (
        (0.5, {3}),
        (1.0, {2, 3}),
        (1.8, {1, 2, 3}),
        (2.7, {0, 1, 2, 3}),
        (0.0, {0, 1, 2, 3}),
        (-1.0, {0, 1, 2, 3}),
    ):
        assert set(drawn(row, 200, temperature=100.0, top_n_sigma=n)) == wanted


def test_penalties_and_bias() -> None:
    logits = [2.0, 1.9, -1.0, -1.1]
    assert drawn(logits, temperature=0, repetition_penalty=1.1, seen=[(0, 0)]) == [1]
    assert drawn(logits, temperature=0, presence_penalty=0.5, seen=[(0, 0)]) == [0], (
        "a token of the prompt only is not present"
    )
    assert drawn(logits, temperature=0, presence_penalty=0.5, seen=[(0, 1)]) == [1]
    assert drawn(logits, temperature=0, frequency_penalty=0.04, seen=[(0, 2)]) == [0]
    assert drawn(logits, temperature=0, frequency_penalty=0.04, seen=[(0, 3)]) == [1]
    assert drawn(logits, temperature=0, bias=[(3, 5.0)]) == [3]
    assert drawn(logits, rows=1, temperature=0, bias=[(0, -np.inf), (1, -np.inf)]) == [2]
    negative = [-1.0, -1.05]
    assert drawn(negative, temperature=0, repetition_penalty=1.1, seen=[(0, 1)]) == [1], (
        "a negative logit is multiplied"
    )


def test_bias_comes_before_penalties() -> None:
    """2 * (1 + 2) / 4 < 1.9 would be another order: the bias is divided, too."""
    assert drawn([1.0, 1.2], temperature=0, bias=[(0, 2.0)], repetition_penalty=4.0, seen=[(0, 1)]) == [1]


def test_logprobs_are_of_the_unmodified_logits() -> None:
    found = ReferenceBackend().sample(ROW, settings(temperature=0, bias=[(0, 9.0)]), num_logprobs=2)
    assert found.tokens.tolist() == [0]
    assert found.logprobs[0] == pytest.approx(np.log(0.1), abs=1e-6)
    assert found.top_tokens.tolist() == [[1, 3]]
    np.testing.assert_allclose(found.top_logprobs, np.log([[0.4, 0.3]]), rtol=1e-6)


def test_score() -> None:
    table = np.concatenate([ROW, ROW + 5])
    found = ReferenceBackend().score(table, np.array([1, 0], np.int32), np.array([2, 3], np.int32), 9)
    np.testing.assert_allclose(found.logprobs, np.log([0.2, 0.3]), rtol=1e-6)
    assert found.tokens.tolist() == [2, 3] and found.top_tokens.shape == (2, 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_cannot_be_drawn_from(bad: float) -> None:
    table = np.concatenate([ROW, ROW])
    table[1, 2] = bad
    usable = ReferenceBackend().sample(ROW, settings(1), 1)
    found = ReferenceBackend().sample(table, settings(2), 1)
    assert found.tokens.tolist() == [usable.tokens[0], -1]
    assert found.logprobs[0] == usable.logprobs[0] and np.isnan(found.logprobs[1])
    scored = ReferenceBackend().score(table, np.array([1, 0], np.int32), np.array([0, 0], np.int32), 0)
    assert np.isnan(scored.logprobs).tolist() == [True, False]
