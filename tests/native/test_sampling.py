"""Sampling: exact where it is exact, and in distribution where it is random. Logits enter through a constant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from homenode import _native
from homenode.compute.native import NativeBackend
from homenode.compute.ops import FloatArray, Logits, SampledRows, SamplingArrays
from homenode.compute.reference import sampling as reference
from tests.native.steps import Part, limits, step_of


def logits_of(backend: NativeBackend, values: Any) -> Logits:
    array = np.atleast_2d(np.asarray(values, np.float32))
    return backend.compile(lambda ops: backend.constant(array), limits(len(array))).run(step_of([Part(0, len(array))]))


def lists(rows: Sequence[dict[int, float]], dtype: type) -> tuple[Any, Any, Any]:
    start = np.cumsum([0] + [len(r) for r in rows]).astype(np.int32)
    return (
        start,
        np.array([t for r in rows for t in r], np.int32),
        np.array([v for r in rows for v in r.values()], dtype),
    )


def settings(rows: int, **given: Any) -> SamplingArrays:
    """Plain sampling from `rows` rows; scalars in `given` are repeated, bias and seen are a dict for each row."""

    names = ("start", "token")
    lists_given = {
        f"{which}_{name}": values
        for which, last, kind in (("bias", "value", np.float32), ("seen", "count", np.int32))
        for name, values in zip((*names, last), lists(given.pop(which, [{}] * rows), kind), strict=True)
    }
    return SamplingArrays.of(rows, **{"seed": 1, **given, **lists_given})


def random_logits(rows: int, vocabulary: int, seed: int = 0, spread: float = 3.0) -> FloatArray:
    return (spread * np.random.default_rng(seed).standard_normal((rows, vocabulary))).astype(np.float32)


def sample(backend: NativeBackend, values: Any, num_logprobs: int = -1, **given: Any) -> SampledRows:
    logits = logits_of(backend, values)
    return backend.sample(logits, settings(logits.rows, **given), num_logprobs)


@pytest.mark.parametrize("vocabulary", [1, 2, 15, 16, 17, 1000, 16384, 40001])
def test_greedy(backend: NativeBackend, vocabulary: int) -> None:
    values = random_logits(5, vocabulary)
    assert sample(backend, values, temperature=0).tokens.tolist() == values.argmax(1).tolist()


def test_greedy_takes_the_lowest_of_equals(backend: NativeBackend) -> None:
    values = np.zeros((3, 40000), np.float32)
    values[0, [7, 9, 30000]] = 5
    values[1, [39999, 20000]] = 5
    assert sample(backend, values, temperature=0).tokens.tolist() == [7, 20000, 0]


def test_top_k_keeps_the_lowest_of_equals(backend: NativeBackend) -> None:
    values = np.zeros((200, 500), np.float32)
    values[:, 100] = 1
    for k, allowed in ((1, {100}), (3, {100, 0, 1}), (100, {100, *range(99)})):
        drawn = set(sample(backend, values, top_k=k, counter=np.arange(200)).tokens.tolist())
        assert drawn <= allowed
        assert k == 1 or len(drawn) > 1


def chi_square(tokens: Sequence[int], probabilities: Any) -> float:
    """Sum of (seen - expected)^2 / expected, tokens expected less than five times put together."""
    expected = np.asarray(probabilities) * len(tokens)
    seen = np.bincount(tokens, minlength=len(expected))
    rare = expected < 5
    seen, expected = np.append(seen[~rare], seen[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    keep = expected > 0
    assert not seen[~keep].any(), "a token of probability zero was drawn"
    return float(((seen[keep] - expected[keep]) ** 2 / expected[keep]).sum())


def wanted_distribution(row: FloatArray, temperature: float, top_k: int, top_p: float, min_p: float) -> Any:
    logits = row.astype(np.float64) / temperature
    kept = reference.kept(logits, top_k, top_p, min_p)
    weights = np.zeros(len(row))
    weights[kept] = np.exp(logits[kept] - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p", "min_p"),
    [
        (1, 0, 1, 0),
        (0.7, 0, 1, 0),
        (1.5, 12, 1, 0),
        (1, 0, 0.8, 0),
        (1, 0, 1, 0.05),
        (0.9, 20, 0.9, 0.02),
        (1, 10**6, 1, 0),
        (1, 0, 0, 0),
        (2, 0, 0.99, 0.3),
    ],
)
def test_distribution(backend: NativeBackend, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    draws, row = 4000, random_logits(1, 60, seed=4, spread=1.5)[0]
    values = np.tile(row, (draws, 1))
    drawn = sample(
        backend,
        values,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=99,
        counter=np.arange(draws),
    ).tokens
    wanted = wanted_distribution(row, temperature, top_k, top_p, min_p)
    freedom = max(1, np.count_nonzero(wanted * draws >= 5))
    # Seeds are fixed, so this is one number, not a chance: mean + 5 standard deviations of the chi-square distribution.
    assert chi_square(drawn, wanted) < freedom + 5 * (2 * freedom) ** 0.5


def test_large_vocabularies_draw_what_the_reference_draws(backend: NativeBackend) -> None:
    """Same uniform number, same order of tokens: all but the draws on the edge between two tokens agree."""
    values = random_logits(60, 5000, seed=8)
    rng = np.random.default_rng(5)
    given = {
        "temperature": rng.uniform(0.3, 1.5, 60), "top_k": rng.choice([0, 1, 5, 50, 700, 9999], 60),
        "top_p": rng.choice([1, 0.95, 0.5], 60),
        "min_p": rng.choice([0, 0.1], 60), "top_n_sigma": rng.choice([0, -1, 1, 3], 60),
        "seed": rng.integers(0, 2**63, 60), "counter": rng.integers(0, 1000, 60),
    }  # fmt: skip
    found = sample(backend, values, **given).tokens
    wanted = reference.sample_rows(values, settings(60, **given), -1).tokens
    assert np.count_nonzero(found == wanted) >= 59


@pytest.mark.parametrize("spread", [0.3, 4.0])
def test_a_whole_vocabulary_draws_what_the_reference_draws(backend: NativeBackend, spread: float) -> None:
    """Of flat distributions, where nearly every token survives, and of steep ones, with forbidden tokens and many
    equals among them.
    """
    values = random_logits(24, 151_936, seed=9, spread=spread)
    values[8:16] = np.round(values[8:16], 1)
    values[16:, ::3] = -np.inf
    rng = np.random.default_rng(6)
    given = {
        "temperature": rng.uniform(0.5, 1.5, 24), "top_k": np.tile([0, 1, 40, 3000, 0, 0], 4),
        "top_p": np.tile([1, 1, 0.95, 1, 0.9, 1], 4),
        "min_p": np.tile([0, 0, 0, 0.1, 0, 0.2], 4), "top_n_sigma": np.tile([0, 2.5, 0, 0, 1, 0, 0.5, 0], 3),
        "seed": rng.integers(0, 2**63, 24), "counter": rng.integers(0, 1000, 24),
    }  # fmt: skip
    found = sample(backend, values, **given).tokens
    wanted = reference.sample_rows(values, settings(24, **given), -1).tokens
    assert np.isfinite(values[np.arange(24), found]).all()
    assert np.count_nonzero(found == wanted) >= 22


@pytest.mark.parametrize("at", [0, 511, 512, 16383, 16384, 16385, 151_935])
def test_the_largest_is_found_wherever_it_stands(backend: NativeBackend, at: int) -> None:
    values = np.full((2, 151_936), -7.0, np.float32)
    values[0, at] = -6.5
    values[1, at:] = -np.inf if at else 1
    values[1, -1] = 3 if at == 0 else -8
    wanted = [at, 151_935 if at == 0 else 0]
    assert sample(backend, values, temperature=0).tokens.tolist() == wanted
    top = sample(backend, values, 3, temperature=0)
    assert top.top_tokens[:, 0].tolist() == wanted


@pytest.mark.parametrize("n", [0.05, 0.7, 1.0, 3.0, 1000.0])
@pytest.mark.parametrize("vocabulary", [1, 3, 16, 17, 700, 40_001])
def test_top_n_sigma_keeps_what_is_near_the_largest(level: str, vocabulary: int, n: float) -> None:
    """At a temperature at which all that are kept are drawn; -inf counts for nothing."""
    row = random_logits(1, vocabulary, seed=3)[0]
    row[1::7] = -np.inf
    finite = row[np.isfinite(row)].astype(np.float64)
    least = np.float32(finite.max() - n * np.sqrt(np.mean((finite - finite.mean()) ** 2)))
    drawn = sample(
        NativeBackend([-1], 0, level),
        np.tile(row, (200, 1)),
        temperature=1e6,
        top_n_sigma=n,
        seed=np.arange(200),
    ).tokens
    kept = np.flatnonzero(row >= least)
    assert set(drawn.tolist()) <= set(kept.tolist())
    assert len(kept) > 20 or set(drawn.tolist()) == set(kept.tolist()), "each of a few is drawn"
    assert reference.top_n_sigma_floor(row.astype(np.float64), n) == least


def test_top_n_sigma_comes_after_penalties_and_before_top_k(backend: NativeBackend) -> None:
    """Without the bias of the first token the others would be too far below it; of what is left top-k takes one."""
    values, counters = np.tile(np.array([9.0, 1, 0.9, 0, 0, 0, 0], np.float32), (100, 1)), np.arange(100)
    alone = sample(backend, values, top_n_sigma=1.0, temperature=1e6, counter=counters).tokens
    biased = sample(backend, values, top_n_sigma=1.0, temperature=1e6, counter=counters, bias=[{0: -8.0}] * 100).tokens
    first = sample(backend, values, top_n_sigma=1.0, temperature=1e6, top_k=1, counter=counters).tokens
    assert set(alone.tolist()) == {0} == set(first.tolist())
    assert set(biased.tolist()) == {0, 1, 2}


def test_the_native_settings_are_those_of_the_table(backend: NativeBackend) -> None:
    """A field for each, none besides, and each must be set: what is forgotten is named."""
    arrays = _native.NativeSamplingArrays()
    logits, named = logits_of(backend, random_logits(2, 50)), settings(2).named()
    assert {name for name in dir(arrays) if not name.startswith("_")} == set(named)
    sampler = _native.NativeSampler(_native.ThreadPool([-1], 0, False), _native.best_level())
    for name, values in named.items():
        with pytest.raises(ValueError, match=f"no {name} was given"):
            sampler.sample(logits, arrays, -1)
        setattr(arrays, name, values)
    assert len(sampler.sample(logits, arrays, -1)[0]) == 2


def test_arrays_that_are_replaced_or_changed_between_draws_are_seen(backend: NativeBackend) -> None:
    logits, how = logits_of(backend, random_logits(3, 50)), settings(3, temperature=0)
    greedy = backend.sample(logits, how).tokens.tolist()
    how.settings["temperature"][:] = 1e6
    drawn = [backend.sample(logits, how).tokens.tolist() for _ in range(2)]
    how.counter = how.counter + np.uint64(1)
    later = backend.sample(logits, how).tokens.tolist()
    how.settings["temperature"] = np.zeros(3, np.float32)
    assert drawn[0] == drawn[1] and len({tuple(greedy), tuple(drawn[0]), tuple(later)}) == 3
    assert backend.sample(logits, how).tokens.tolist() == greedy
    how.settings["top_k"] = np.zeros(3, np.int64)
    with pytest.raises(TypeError):
        backend.sample(logits, how)


def test_flat_logits_and_top_p_keep_the_right_number(backend: NativeBackend) -> None:
    values = np.zeros((3000, 200), np.float32)
    drawn = sample(backend, values, top_p=0.5, counter=np.arange(3000)).tokens
    assert set(drawn.tolist()) == set(range(100))


def test_a_draw_depends_on_its_row_only(level: str) -> None:
    values = random_logits(40, 3000)
    sigmas = np.tile([0.0, 1.0, 2.5, -1.0], 10)
    given = {"temperature": 1.1, "top_p": 0.9, "top_n_sigma": sigmas, "seed": np.arange(40), "counter": np.arange(40)}
    alone = []
    for i in range(40):
        own = {name: value if np.isscalar(value) else value[i] for name, value in given.items()}
        alone.append(int(sample(NativeBackend([-1], 0, level), values[i], **own).tokens[0]))
    for threads in (1, 2, 3):
        assert sample(NativeBackend([-1] * threads, 0, level), values, **given).tokens.tolist() == alone


def test_uniform_is_the_references() -> None:
    for seed, counter in ((0, 0), (1, 2), (2**64 - 1, 2**40), (12345, 678)):
        assert _native.uniform(seed, counter) == reference.uniform(seed, counter)


def test_bias_forbids_and_forces(backend: NativeBackend) -> None:
    values = np.tile(random_logits(1, 50)[0], (300, 1))
    best = int(values[0].argmax())
    drawn = sample(backend, values, bias=[{best: -np.inf, 3: 1.0}] * 300, counter=np.arange(300)).tokens
    assert best not in drawn.tolist()
    assert set(sample(backend, values, bias=[{7: 100.0}] * 300, counter=np.arange(300)).tokens.tolist()) == {7}


def test_penalties_in_their_order(backend: NativeBackend) -> None:
    """Greedy over five tokens, worked out by hand: bias, repetition, frequency, presence."""
    values = [[2.0, 1.9, -1.0, 0.5, 0.0]]
    cases: list[tuple[dict[str, Any], int]] = [
        ({"repetition_penalty": 1.2, "seen": [{0: 0}]}, 1),  # 2 / 1.2 < 1.9, the prompt counts
        ({"repetition_penalty": 1.2, "seen": [{0: 0, 1: 0}]}, 0),
        ({"frequency_penalty": 0.06, "seen": [{0: 2, 1: 0}]}, 1),  # 2 - 0.12 < 1.9
        ({"frequency_penalty": 0.06, "seen": [{0: 1, 1: 0}]}, 0),
        ({"presence_penalty": 0.11, "seen": [{0: 3}]}, 1),
        ({"presence_penalty": 0.11, "seen": [{0: 0}]}, 0),  # only in the prompt
        ({"repetition_penalty": 2.0, "seen": [{4: 1, 0: 1, 1: 1, 3: 1}], "bias": [{4: 1.9}]}, 0),  # 1.9 + 0 halved too
        (
            {"repetition_penalty": 3.0, "seen": [{2: 1}], "bias": [{0: -9.0, 1: -9.0, 3: -9.0, 4: -9.0}]},
            2,
        ),  # -1 becomes -3
    ]
    for given, wanted in cases:
        assert sample(backend, values, temperature=0, **given).tokens.tolist() == [wanted], given


def test_unpenalised_rows_beside_penalised_ones(backend: NativeBackend) -> None:
    values = np.tile([3.0, 2.0, 1.0], (3, 1))
    drawn = sample(
        backend, values, temperature=0, bias=[{}, {0: -5.0}, {}], seen=[{}, {}, {0: 4}], presence_penalty=[0, 0, 1.5]
    )
    assert drawn.tokens.tolist() == [0, 1, 1]


@pytest.mark.parametrize("vocabulary", [1, 7, 3000])
@pytest.mark.parametrize("count", [0, 1, 5, 2999])
def test_logprobs_are_of_the_unmodified_logits(backend: NativeBackend, vocabulary: int, count: int) -> None:
    values = random_logits(4, vocabulary)
    found = sample(backend, values, count, temperature=0.3, bias=[{0: 50.0}] * 4)
    wanted = (
        values
        - np.log(np.exp(values.astype(np.float64) - values.max(1, keepdims=True)).sum(1, keepdims=True))
        - values.max(1, keepdims=True)
    )
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    assert found.tokens.tolist() == [0] * 4
    np.testing.assert_allclose(found.logprobs, wanted[:, 0], rtol=1e-5, atol=1e-5)
    assert np.array_equal(found.top_tokens, order)
    np.testing.assert_allclose(found.top_logprobs, np.take_along_axis(wanted, order, 1), rtol=1e-5, atol=1e-5)


def test_score(backend: NativeBackend) -> None:
    values = random_logits(6, 900)
    found = backend.score(logits_of(backend, values), np.array([5, 0, 5], np.int32), np.array([3, 899, 4], np.int32), 2)
    wanted = reference.score_rows(values, np.array([5, 0, 5], np.int32), np.array([3, 899, 4], np.int32), 2)
    assert found.tokens.tolist() == [3, 899, 4] and np.array_equal(found.top_tokens, wanted.top_tokens)
    np.testing.assert_allclose(found.logprobs, wanted.logprobs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 13, 16, 50, 36, 40000])
def test_bad_logits_cost_their_row_only(backend: NativeBackend, bad: float, place: int) -> None:
    values = random_logits(3, 40001)
    usable = [sample(backend, values, temperature=temperature) for temperature in (0, 1)]
    values[1, place] = bad
    for temperature in (0, 1):
        found = sample(backend, values, temperature=temperature)
        assert found.tokens.tolist() == [usable[temperature].tokens[0], -1, usable[temperature].tokens[2]]
    scored = backend.score(logits_of(backend, values), np.array([1, 2], np.int32), np.array([0, 0], np.int32), 0)
    assert np.isnan(scored.logprobs).tolist() == [True, False]


def test_nothing_is_drawn_from_a_row_with_everything_forbidden(backend: NativeBackend) -> None:
    assert sample(backend, [[1.0, 2.0]], bias=[{0: -np.inf, 1: -np.inf}]).tokens.tolist() == [-1]


def test_wrong_settings_are_refused(backend: NativeBackend) -> None:
    wrong: list[dict[str, Any]] = [
        {"temperature": -1}, {"temperature": np.nan}, {"top_p": -0.5}, {"min_p": 2}, {"top_n_sigma": np.nan},
        {"top_k": -1}, {"repetition_penalty": 0},
        {"bias": [{50: 1.0}]}, {"bias": [{-1: 1.0}]}, {"seen": [{50: 1}]},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(ValueError, match="sampling arrays"):
            sample(backend, random_logits(1, 50), **given)
    logits = logits_of(backend, random_logits(2, 50))
    with pytest.raises(ValueError, match="2 rows"):
        backend.sample(logits, settings(1))
    with pytest.raises(ValueError, match="target 50"):
        backend.score(logits, np.array([0], np.int32), np.array([50], np.int32), 0)
    with pytest.raises(ValueError, match="row 2 of 2"):
        backend.score(logits, np.array([2], np.int32), np.array([0], np.int32), 0)


def masks_of(rows: Sequence[set[int] | None], vocabulary: int) -> dict[str, Any]:
    """The arrays for rows that may draw these tokens, None: all."""
    masks = np.zeros((len(rows), -(-vocabulary // 32)), np.uint32)
    for row, allowed in enumerate(rows):
        for token in allowed or ():
            masks[row, token // 32] |= np.uint32(1 << (token % 32))
    return {"mask_row": np.array([-1 if r is None else i for i, r in enumerate(rows)], np.int32), "masks": masks}


@pytest.mark.parametrize("vocabulary", [31, 32, 33, 5000, 40001])
def test_masked_rows_draw_what_the_reference_draws(backend: NativeBackend, vocabulary: int) -> None:
    rows, rng = 60, np.random.default_rng(vocabulary)
    values = random_logits(rows, vocabulary, seed=3)
    counts = rng.choice([0, 1, 2, 7, vocabulary // 2, vocabulary - 1], rows)
    allowed = [None if i % 7 == 0 else set(rng.permutation(vocabulary)[:n].tolist()) for i, n in enumerate(counts)]
    given = {
        "temperature": rng.choice([0, 0.7, 1.5], rows), "top_k": rng.choice([0, 1, 5, 700], rows),
        "top_p": rng.choice([1, 0.9, 0.3], rows),
        "min_p": rng.choice([0, 0.1], rows), "top_n_sigma": rng.choice([0, 1.5], rows),
        "seed": rng.integers(0, 2**63, rows), "counter": rng.integers(0, 1000, rows),
        "bias": [{0: 3.0, vocabulary - 1: -2.0}] * rows, "seen": [{1: 2, 2: 0}] * rows,
        "frequency_penalty": rng.choice([0, 0.5], rows),
    }  # fmt: skip
    how = masks_of(allowed, vocabulary)
    found = sample(backend, values, num_logprobs=3, **given, **how)
    wanted = reference.sample_rows(values, settings(rows, **given, **how), 3)
    assert np.count_nonzero(found.tokens == wanted.tokens) >= rows - 1
    for token, own in zip(found.tokens.tolist(), allowed, strict=True):
        assert own is None or token in own or (token == -1 and not own)
    assert np.allclose(found.top_logprobs, wanted.top_logprobs, atol=1e-4)  # of the logits as they are


def test_the_only_token_of_a_mask_is_taken_whatever_its_logit_is(backend: NativeBackend) -> None:
    values = np.zeros((3, 100), np.float32)
    values[1, 40] = -np.inf
    values[2, 7] = np.nan
    how = masks_of([{40}] * 3, 100)
    assert sample(backend, values, temperature=0.5, **how).tokens.tolist() == [40, 40, -1]
    assert reference.sample_rows(values, settings(3, temperature=0.5, **how), -1).tokens.tolist() == [40, 40, -1]
    assert sample(backend, values[:1], bias=[{40: -np.inf}], **masks_of([{40}], 100)).tokens.tolist() == [40]


@pytest.mark.parametrize(
    ("mask_row", "words", "told"), [([0], 1, "masks of 1 words"), ([2], 4, "mask_row 2 of 2"), ([-2], 4, "mask_row -2")]
)
def test_masks_that_do_not_fit_are_refused(backend: NativeBackend, mask_row: list[int], words: int, told: str) -> None:
    how = {"mask_row": np.array(mask_row, np.int32), "masks": np.zeros((2, words), np.uint32)}
    with pytest.raises(ValueError, match=told):
        sample(backend, np.zeros((1, 100), np.float32), **how)


@pytest.mark.parametrize(
    "given",
    [
        {"typical_p": 0.3},
        {"typical_p": 0.9, "top_p": 0.8, "min_p": 0.05},
        {"typical_p": 1e-6},
        {"max_surprise": 3.0},
        {"max_surprise": 0.01, "top_k": 40},
        {"xtc_probability": 1.0, "xtc_threshold": 0.02},
        {"xtc_probability": 0.5, "xtc_threshold": 0.01, "top_k": 30},
        {"dynatemp_range": 0.7},
        {"dynatemp_range": 0.7, "dynatemp_exponent": 0.5, "top_k": 20, "top_p": 0.9},
        {"typical_p": 0.8, "max_surprise": 6.0, "xtc_probability": 0.7, "xtc_threshold": 0.05, "top_n_sigma": 2.5},
    ],
    ids=str,
)
def test_chains_draw_what_the_reference_draws(backend: NativeBackend, given: dict[str, float]) -> None:
    values = random_logits(200, 700, seed=5)
    how = {"temperature": 0.9, "seed": np.arange(200, dtype=np.uint64), **given}
    found = sample(backend, values, **how).tokens
    wanted = reference.sample_rows(values, settings(200, **how), -1).tokens
    assert np.count_nonzero(found != wanted) <= 1  # a draw at the very edge of two tokens
