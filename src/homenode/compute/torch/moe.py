"""MoE layers, grouped: each expert multiplies all rows that chose it at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from homenode.units import format_count

Mlp = Callable[[torch.Tensor, int], torch.Tensor]  # rows, index of an expert in `ids` -> the expert's output


def add_experts(
    x: torch.Tensor,
    logits: torch.Tensor,
    ids: tuple[int, ...] | None,
    mlp: Mlp,
    chosen: int,
    normalise: bool,
    residual: torch.Tensor | None,
) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
    """`Ops.moe` on tensors. `ids`: the experts whose matrices this rank has, ascending; None: all.

    Returns the output rows and, for each expert, how many rows it was computed for here.
    """
    experts = logits.shape[1]
    if not 1 <= chosen <= experts:
        raise ValueError(f"{format_count(chosen, 'expert was', 'experts were')} to be chosen from {experts}")
    indices, weights = choose(logits, chosen, normalise)
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
        rows = mine // chosen
        # No row is here twice. Experts come in ascending order, and so are their results added.
        out[rows] = out[rows] + weights.reshape(-1)[mine].unsqueeze(1) * mlp(x[rows], index)
    return out, tokens


def choose(logits: torch.Tensor, chosen: int, normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each row in ascending order, int64 [rows, chosen], and their weights, float32 [rows, chosen]."""
    order = torch.sort(logits, dim=1, descending=True, stable=True).indices  # of equal logits the lowest index first
    indices = order[:, :chosen].sort(dim=1).values
    likelihoods = torch.exp(logits - logits.amax(dim=1, keepdim=True))
    mine = likelihoods.gather(1, indices)
    total = (mine if normalise else likelihoods).sum(dim=1, keepdim=True)
    return indices, mine / total
