"""MoE layers, grouped: each expert multiplies all rows that chose it at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from homenode.compute.ops import Routing
from homenode.units import format_count

Mlp = Callable[[torch.Tensor, int], torch.Tensor]  # rows, index of an expert in `ids` -> the expert's output


def add_experts(
    x: torch.Tensor,
    routes: tuple[torch.Tensor, torch.Tensor],
    experts: int,
    ids: tuple[int, ...] | None,
    mlp: Mlp,
    residual: torch.Tensor | None,
) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
    """`Ops.moe` on tensors. `routes`: what `choose` made of the logits for `experts` experts; `ids`: those whose
    matrices this rank has, ascending; None: all.

    Returns the output rows and, for each expert, how many rows it was computed for here.
    """
    indices, weights = routes
    out = torch.zeros_like(x) if residual is None else residual.clone()
    # Assignments by expert, then by row: a stable sort of the flat list, whose runs the host must know.
    flat = indices.reshape(-1)
    order = torch.argsort(flat, stable=True)
    ends = torch.bincount(flat, minlength=experts).cumsum(0).tolist()
    tokens = np.zeros(experts, np.int64)
    for index, expert in enumerate(range(experts) if ids is None else ids):
        begin, end = (ends[expert - 1] if expert else 0), ends[expert]
        if begin == end:
            continue
        tokens[expert] = end - begin
        mine = order[begin:end]
        rows = mine // indices.shape[1]
        # Experts come in ascending order, and so are their results added; a row is here twice only where it was told
        # so.
        out.index_add_(0, rows, weights.reshape(-1)[mine].unsqueeze(1) * mlp(x[rows], index))
    return out, tokens


def choose(
    logits: torch.Tensor,
    routing: Routing,
    choice_bias: torch.Tensor | None,
    scales: torch.Tensor | None,
    told: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each row in ascending order, int64 [rows, chosen], and their weights, float32 [rows, chosen].
    `told`: which these are, where scores do not say.

    ValueError unless 1 <= chosen <= experts, and where experts are told that there are not.
    """
    chosen, experts = routing.chosen, logits.shape[1]
    if not 1 <= chosen <= experts:
        raise ValueError(f"{format_count(chosen, 'expert was', 'experts were')} to be chosen from {experts}")
    scores = _scores(logits, routing)
    by = logits if routing.by_logits else scores
    if choice_bias is not None:
        by = scores + choice_bias
    if told is not None and told.numel() and not 0 <= int(told.min()) <= int(told.max()) < experts:
        raise ValueError(f"a token's experts are {int(told.min())} to {int(told.max())}, and there are {experts}")
    indices = _best(_within_groups(by, routing), chosen) if told is None else told.long()
    indices = indices.sort(dim=1).values
    weights = scores.gather(1, indices)
    if routing.score == "sparsemixer":
        weights = _sparse_weights(logits, indices, routing.jitter)
    elif routing.score == "chosen_softmax":
        weights = torch.exp(weights - weights.amax(dim=1, keepdim=True))
        weights = weights / weights.sum(dim=1, keepdim=True)
    elif routing.normalise:
        weights = weights / (weights.sum(dim=1, keepdim=True) + routing.epsilon)
    weights = weights * routing.scale
    return indices, weights if scales is None else weights * scales[indices]


def _scores(logits: torch.Tensor, routing: Routing) -> torch.Tensor:
    match routing.score:
        case "sigmoid":
            return 1 / (1 + torch.exp(-logits))
        case "sqrt_softplus":
            return (logits.clamp(min=0) + torch.log1p(torch.exp(-logits.abs()))).sqrt()
        case "softmax":
            likelihoods = torch.exp(logits - logits.amax(dim=1, keepdim=True))
            return likelihoods / likelihoods.sum(dim=1, keepdim=True)
    return logits


def _sparse_weights(logits: torch.Tensor, indices: torch.Tensor, jitter: float) -> torch.Tensor:
    """Return of each chosen expert the softmax over those near it that were not chosen before it."""
    left, chosen = logits.clone(), logits.gather(1, indices)
    weights = torch.empty_like(chosen)
    for place in _best(chosen, chosen.shape[1]).unbind(1):
        at = place.unsqueeze(1)
        expert, best = indices.gather(1, at), chosen.gather(1, at)
        far = best - logits > 2 * jitter * torch.maximum(logits.abs(), best)
        weights.scatter_(1, at, 1 / torch.exp(left.masked_fill(far, -torch.inf) - best).sum(dim=1, keepdim=True))
        left.scatter_(1, expert, -torch.inf)
    return weights


def _within_groups(values: torch.Tensor, routing: Routing) -> torch.Tensor:
    """The values [rows, experts], -infinity outside the best groups of each row."""
    if routing.groups == 1:
        return values
    groups = values.view(len(values), routing.groups, -1)
    best = _sorted(groups)[..., : 1 if routing.group_score == "max" else 2].sum(dim=2)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter_(1, _best(best, routing.groups_chosen), True)
    return groups.masked_fill(~kept.unsqueeze(2), -torch.inf).view(values.shape)


def _sorted(values: torch.Tensor) -> torch.Tensor:
    return torch.sort(values, dim=-1, descending=True, stable=True).values


def _best(values: torch.Tensor, count: int) -> torch.Tensor:
    """Indices of the largest values of each row, of equal ones the lowest first."""
    return torch.sort(values, dim=1, descending=True, stable=True).indices[:, :count]
