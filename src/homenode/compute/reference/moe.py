"""Mixtures of experts for one row, in NumPy: see `Routing` and `Experts`."""

from __future__ import annotations

import numpy as np

from homenode.compute.activations import PLAIN, gated, sigmoid
from homenode.compute.ops import Experts, FloatArray, IntArray, Routing
from homenode.units import format_count


def choose_experts(
    logits: FloatArray, routing: Routing, choice_bias: FloatArray | None = None, chosen: IntArray | None = None
) -> tuple[IntArray, FloatArray]:
    """The experts of one row in ascending order, int32 [chosen], and their weights, float32 [chosen]. `chosen`: which,
    where scores do not say.

    ValueError for a routing that does not fit the number of experts.
    """
    check_routing(routing, len(logits))
    if chosen is not None and not 0 <= chosen.min() <= chosen.max() < len(logits):
        raise ValueError(f"a token's experts are {chosen.min()} to {chosen.max()}, and there are {len(logits)}")
    scores = _scores(logits, routing)
    by = scores if choice_bias is None else scores + choice_bias
    if choice_bias is None and routing.by_logits:
        by = logits
    indices = np.sort(_best(_within_groups(by, routing), routing.chosen) if chosen is None else chosen)
    weights = scores[indices]
    if routing.score == "sparsemixer":
        weights = _sparse_weights(logits, indices, routing.jitter)
    elif routing.score == "chosen_softmax":
        weights = np.exp(weights - weights.max())
        weights = weights / weights.sum(dtype=np.float32)
    elif routing.normalise:
        weights = weights / (weights.sum(dtype=np.float32) + np.float32(routing.epsilon))
    return indices.astype(np.int32), np.asarray(weights * np.float32(routing.scale), np.float32)


def check_routing(routing: Routing, experts: int) -> None:
    """ValueError for a routing that does not fit so many experts."""
    chosen, groups = routing.chosen, routing.groups
    if not 1 <= chosen <= experts:
        raise ValueError(f"{format_count(chosen, 'expert was', 'experts were')} to be chosen from {experts}")
    if groups < 1 or experts % groups or not 1 <= routing.groups_chosen <= groups:
        raise ValueError(
            f"{routing.groups_chosen} of {format_count(groups, 'group')} were to be chosen, of "
            f"{format_count(experts, 'expert')}; "
            "wanted groups of equal length"
        )
    if chosen > experts // groups * routing.groups_chosen:
        raise ValueError(
            f"{format_count(chosen, 'expert was', 'experts were')} to be chosen from "
            f"{format_count(routing.groups_chosen, 'group')} of {experts // groups}"
        )


def expert_output(experts: Experts, here: int, row: FloatArray) -> FloatArray:
    """Return what expert `here` of those in `experts` makes of a row, not weighted."""
    up = experts.up[here] @ row
    if experts.up_bias is not None:
        up = up + experts.up_bias[here]
    if experts.gate:
        gate = experts.gate[here] @ row
        if experts.gate_bias is not None:
            gate = gate + experts.gate_bias[here]
        inner = gated(gate, up, experts.activation)
    else:
        inner = PLAIN[experts.activation](up)
    out: FloatArray = experts.down[here] @ inner
    return out if experts.down_bias is None else out + experts.down_bias[here]


def _scores(logits: FloatArray, routing: Routing) -> FloatArray:
    match routing.score:
        case "sigmoid":
            return np.asarray(sigmoid(logits), np.float32)
        case "sqrt_softplus":
            return np.asarray(np.sqrt(np.logaddexp(logits, np.float32(0))), np.float32)
        case "softmax":
            likelihoods = np.exp(logits - logits.max())
            return np.asarray(likelihoods / likelihoods.sum(dtype=np.float32), np.float32)
    return logits


def _sparse_weights(logits: FloatArray, indices: IntArray, jitter: float) -> FloatArray:
    """Return of each chosen expert the softmax over those near it that were not chosen before it."""
    left, weights = logits.copy(), np.empty(len(indices), np.float32)
    for place in np.argsort(-logits[indices], kind="stable"):
        best = logits[indices[place]]
        far = best - logits > np.float32(2 * jitter) * np.maximum(np.abs(logits), best)
        weights[place] = 1 / np.exp(np.where(far, -np.inf, left) - best).sum(dtype=np.float32)
        left[indices[place]] = -np.inf
    return weights


def _within_groups(values: FloatArray, routing: Routing) -> FloatArray:
    """The values, -infinity outside the best groups."""
    if routing.groups == 1:
        return values
    groups = values.reshape(routing.groups, -1)
    if routing.group_score == "max":
        of_group = groups.max(axis=1)
    else:
        of_group = -np.sort(-groups, axis=1)[:, :2].sum(axis=1)
    kept = np.full(groups.shape, -np.inf, np.float32)
    best = _best(of_group, routing.groups_chosen)
    kept[best] = groups[best]
    return kept.reshape(-1)


def _best(values: FloatArray, count: int) -> IntArray:
    """Indices of the largest values, of equal ones the lowest first."""
    return np.argsort(-values, kind="stable")[:count].astype(np.int32)
