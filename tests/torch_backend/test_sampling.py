"""The device's sampler draws what the NumPy backend draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from homenode.compute.ops import SamplingArrays
from homenode.compute.reference import sampling as reference
from homenode.compute.torch import sampling
from tests.examples import examples


def random_how(rows: int, vocabulary: int, seed: int) -> SamplingArrays:
    """Every way to draw, mixed."""
    random = np.random.default_rng(seed)

    def pick(*values: float) -> Any:
        return random.choice(np.array(values, np.float32), rows).astype(np.float32)

    biased, seen = random.integers(0, 4, rows), random.integers(0, min(6, vocabulary), rows)
    tokens = [np.sort(random.permutation(vocabulary)[:n]) for n in seen]
    starts = [np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in (biased, seen)]
    return SamplingArrays.of(
        rows,
        temperature=pick(0, 1e-6, 0.3, 1, 2),
        top_n_sigma=pick(0, 0, -1, 0.5, 1.5),
        top_k=random.choice(np.array([0, 1, 3, 40], np.int32), rows),
        top_p=pick(1, 1, 0.9, 0.3, 1e-6),
        min_p=pick(0, 0, 0.05, 1),
        seed=random.integers(0, 2**64, rows, dtype=np.uint64),
        counter=random.integers(0, 5000, rows).astype(np.uint64),
        repetition_penalty=pick(1, 1.3, 0.7),
        frequency_penalty=pick(0, 0.5, -0.3),
        presence_penalty=pick(0, 0.4),
        bias_start=starts[0],
        bias_token=random.integers(0, vocabulary, starts[0][-1]).astype(np.int32),
        bias_value=random.normal(0, 3, starts[0][-1]).astype(np.float32),
        seen_start=starts[1],
        seen_token=np.concatenate([np.zeros(0), *tokens]).astype(np.int32),
        seen_count=random.integers(0, 4, starts[1][-1]).astype(np.int32),
        mask_row=random.choice(np.array([-1, -1, 0, 1, 2], np.int32), rows),
        masks=random_masks(random, vocabulary),
    )


def random_masks(random: np.random.Generator, vocabulary: int) -> Any:
    """Three masks: with about half of the tokens, with one, and with the first and the last."""
    words = -(-vocabulary // 32)
    one = np.zeros(words, np.uint32)
    token = int(random.integers(vocabulary))
    one[token // 32] = 1 << (token % 32)
    half, ends = random.integers(0, 2**32, words, dtype=np.uint32), np.zeros(words, np.uint32)
    half[0] |= 1
    ends[0] |= 1
    ends[(vocabulary - 1) // 32] |= 1 << ((vocabulary - 1) % 32)
    return np.stack([half, one, ends])


@limits(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from([2, 7, 80, 1000]), st.booleans())
def test_draws_and_log_probabilities_are_the_references(seed: int, rows: int, vocabulary: int, coarse: bool) -> None:
    """`coarse` logits have many equals."""
    logits = np.random.default_rng(seed).normal(0, 3, (rows, vocabulary)).astype(np.float32)
    if coarse:
        logits = np.round(logits)
    how = random_how(rows, vocabulary, seed)
    wanted = reference.sample_rows(logits, how, 3)
    found = sampling.sample_rows(torch.from_numpy(logits), how, 3)
    assert found.tokens.tolist() == wanted.tokens.tolist()
    assert found.top_tokens.tolist() == wanted.top_tokens.tolist()
    assert np.allclose(found.logprobs, wanted.logprobs, atol=1e-6)
    assert np.allclose(found.top_logprobs, wanted.top_logprobs, atol=1e-6)
    assert sampling.sample_rows(torch.from_numpy(logits), how, -1).tokens.tolist() == wanted.tokens.tolist()


def test_uniform_is_the_references() -> None:
    seeds, counters = np.array([0, 1234567, 2**64 - 1], np.uint64), np.array([0, 2, 2**40], np.uint64)
    assert sampling.uniform(seeds, counters).tolist() == [
        reference.uniform(int(s), int(c)) for s, c in zip(seeds, counters, strict=True)
    ]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_cannot_be_drawn_are_marked(bad: float) -> None:
    logits, how = torch.zeros((3, 8)), random_how(3, 8, 0)
    usable = sampling.sample_rows(logits, how, 2)
    logits[1, 4] = bad
    found = sampling.sample_rows(logits, how, 2)
    assert found.tokens.tolist() == [usable.tokens[0], -1, usable.tokens[2]]
    assert np.isnan(found.logprobs).tolist() == [False, True, False]
    assert np.array_equal(found.logprobs[[0, 2]], usable.logprobs[[0, 2]])


def test_a_row_depends_on_itself_only() -> None:
    logits = np.random.default_rng(3).normal(0, 2, (40, 500)).astype(np.float32)
    how = random_how(40, 500, 3)
    together = sampling.sample_rows(torch.from_numpy(logits), how, -1).tokens.tolist()
    alone = [reference.draw(row, how, i) for i, row in enumerate(logits)]
    assert together == alone
