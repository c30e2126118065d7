"""Which experts a router's logits choose, and their weights: the reference by hand and by a slow search, and torch
beside it.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.compute.ops import Experts, Routing
from homenode.compute.reference.moe import choose_experts, expert_output

LOGITS = np.array([0.5, 2.0, -1.0, 2.0, 1.0, 0.0, 1.5, -3.0], np.float32)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_a_softmax_over_all_normalised_is_one_over_the_chosen() -> None:
    plain, over_chosen = (choose_experts(LOGITS, Routing(3, score)) for score in ("softmax", "chosen_softmax"))
    assert plain[0].tolist() == over_chosen[0].tolist() == [1, 3, 6]
    total = 2 * math.exp(2.0) + math.exp(1.5)
    wanted = [math.exp(2.0) / total, math.exp(2.0) / total, math.exp(1.5) / total]
    np.testing.assert_allclose(plain[1], wanted, rtol=1e-6)
    np.testing.assert_allclose(over_chosen[1], wanted, rtol=1e-6)


def test_sigmoid_scores_are_chosen_with_a_bias_and_weighted_without() -> None:
    bias = np.array([0, 0, 0.9, 0, -0.9, 0, 0, 0.95], np.float32)
    indices, weights = choose_experts(LOGITS, Routing(2, "sigmoid", epsilon=1e-20, scale=2.5), bias)
    by = [sigmoid(x) + b for x, b in zip(LOGITS, bias, strict=True)]
    best = sorted(sorted(range(8), key=lambda e: (-by[e], e))[:2])
    assert indices.tolist() == best
    scores = [sigmoid(LOGITS[e]) for e in best]
    np.testing.assert_allclose(weights, [2.5 * s / sum(scores) for s in scores], rtol=1e-6)
    unnormalised = choose_experts(LOGITS, Routing(2, "sigmoid", normalise=False), bias)[1]
    np.testing.assert_allclose(unnormalised, scores, rtol=1e-6)


def test_groups_that_are_not_chosen_are_excluded_even_with_negative_scores() -> None:
    bias = np.full(8, -5, np.float32)  # all sums are negative: a group filled with zeros would win
    for score, kept in (("max", [0, 1, 2, 3]), ("top2", [0, 1, 2, 3])):
        routing = Routing(3, "sigmoid", groups=2, groups_chosen=1, group_score=score)
        assert set(choose_experts(LOGITS, routing, bias)[0].tolist()) < set(kept)
    by_max, by_two = (
        choose_experts(np.array([3, -9, 2, 2], np.float32), Routing(1, "softmax", groups=2, group_score=score))[0]
        for score in ("max", "top2")
    )
    assert by_max.tolist() == [0]
    assert by_two.tolist() == [0]  # softmax: 0.58 beside 0.21 + 0.21
    assert choose_experts(np.array([3, -9, 2, 2], np.float32), Routing(1, "sigmoid", groups=2))[0].tolist() == [2]


def test_equals_go_to_the_lowest_index() -> None:
    flat = np.zeros(8, np.float32)
    assert choose_experts(flat, Routing(3))[0].tolist() == [0, 1, 2]
    assert choose_experts(flat, Routing(3, "sigmoid", groups=4, groups_chosen=2))[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        (Routing(0), "0 experts were to be chosen from 8"),
        (Routing(9), "9 experts were to be chosen from 8"),
        (Routing(1, groups=3), "groups of equal length"),
        (Routing(1, groups=2, groups_chosen=3), "3 of 2 groups"),
        (Routing(5, groups=2), "5 experts were to be chosen from 1 group of 4"),
    ],
)
def test_a_routing_that_does_not_fit_is_refused(routing: Routing, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose_experts(LOGITS, routing)


def test_sparse_weights_are_shared_with_what_is_near() -> None:
    logits = np.array([2.0, 1.98, 1.0, -3.0, 1.97], np.float32)
    indices, weights = choose_experts(logits, Routing(2, "sparsemixer", jitter=0.01))
    assert indices.tolist() == [0, 1]
    near = np.exp(logits[[0, 1, 4]] - 2.0)
    rest = np.exp(logits[[1, 4]] - np.float32(1.98))
    np.testing.assert_allclose(weights, [near[0] / near.sum(), rest[0] / rest.sum()], rtol=1e-6)
    indices, weights = choose_experts(np.array([1.0, 4.0, 2.0], np.float32), Routing(2, "sparsemixer", jitter=0.01))
    assert indices.tolist() == [1, 2] and weights.tolist() == [1.0, 1.0]


def test_biases_and_the_clamped_gate() -> None:
    one = [np.array([[1.0]], np.float32)]
    for gate, up in itertools.product((-9.0, 0.5, 8.0), (-9.0, 0.5, 8.0)):
        experts = Experts(
            one,
            one,
            [np.array([[2.0]], np.float32)],
            gate_bias=[np.array([gate - 1], np.float32)],
            up_bias=[np.array([up - 1], np.float32)],
            down_bias=[np.array([3.0], np.float32)],
            activation="clamped",
        )
        g, u = min(gate, 7.0), max(-7.0, min(up, 7.0))
        found = expert_output(experts, 0, np.array([1.0], np.float32))
        np.testing.assert_allclose(found, [2 * g * sigmoid(1.702 * g) * (u + 1) + 3], rtol=1e-5)


@st.composite
def routings(draw: st.DrawFn) -> Routing:
    groups = draw(st.sampled_from((1, 2, 4)))
    kept = draw(st.integers(1, groups))
    return Routing(
        draw(st.integers(1, 8 // groups * kept)),
        draw(st.sampled_from(("softmax", "sigmoid", "chosen_softmax"))),
        draw(st.booleans()),
        draw(st.sampled_from((0.0, 1e-20, 0.1))),
        draw(st.sampled_from((1.0, 2.5))),
        groups,
        kept,
        draw(st.sampled_from(("max", "top2"))),
    )


@given(routings(), st.integers(0, 2**32 - 1), st.booleans())
def test_torch_chooses_and_weighs_as_the_reference(routing: Routing, seed: int, biased: bool) -> None:
    torch = pytest.importorskip("torch", reason="needs torch, which the `torch` dependency group installs")
    from homenode.compute.torch.moe import choose

    random = np.random.default_rng(seed)
    logits, bias = random.standard_normal((5, 8)).astype(np.float32), random.standard_normal(8).astype(np.float32)
    scales = random.random(8).astype(np.float32)
    indices, weights = choose(
        torch.tensor(logits), routing, torch.tensor(bias) if biased else None, torch.tensor(scales)
    )
    for row, found, of_row in zip(logits, indices.numpy(), weights.numpy(), strict=True):
        wanted = choose_experts(row, routing, bias if biased else None)
        assert found.tolist() == wanted[0].tolist()
        np.testing.assert_allclose(of_row, wanted[1] * scales[wanted[0]], rtol=1e-5)
