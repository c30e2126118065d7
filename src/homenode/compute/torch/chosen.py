"""Attention over chosen tokens, and the choice: a few tokens at a time, the keys that they are about gathered for each."""

from __future__ import annotations

import torch

from homenode.compute.torch.kv import TorchKvCache
from homenode.compute.torch.scoring import Scoring
from homenode.compute.torch.step import DeviceStep

_GATHERED = 2**24  # elements of keys, or scores, that there are at once


def choose_positions(
    q: torch.Tensor, weights: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, count: int
) -> torch.Tensor:
    """Positions [tokens, count], -1 behind the last, by queries [tokens, heads, width] and weights [tokens, heads]."""
    step.by_values = True
    found = torch.full((q.shape[0], count), -1, dtype=torch.int64, device=q.device)
    for sequence, context in enumerate(step.host.context_len):
        begin, end = (int(step.host.query_start[sequence + i]) for i in (0, 1))
        positions = torch.arange(int(context), device=q.device)
        slots = step.slots(torch.full_like(positions, sequence), positions, cache.geometry.block_size)
        keys = cache.gather(layer, slots)[0][:, 0].float()
        at_once = max(1, _GATHERED // (q.shape[1] * int(context)))
        for first in range(begin, end, at_once):
            rows = slice(first, min(first + at_once, end))
            products = torch.relu(q[rows] @ keys.T)
            scores = (weights[rows].unsqueeze(1) @ products).squeeze(1)
            scores = scores.masked_fill(positions > step.positions[rows].unsqueeze(1), -torch.inf)
            best = scores.argsort(dim=1, descending=True, stable=True)[:, :count]
            unseen = best > step.positions[rows].unsqueeze(1)
            found[rows, : best.shape[1]] = best.masked_fill(unseen, -1)
    return found


def chosen_attention(
    q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, how: Scoring, chosen: torch.Tensor
) -> torch.Tensor:
    """q [tokens, 1, group, width] over the keys at `chosen`, which are the values, too."""
    out, count = torch.empty_like(q), chosen.shape[1]
    at_once = max(1, _GATHERED // (count * q.shape[3]))
    for first in range(0, q.shape[0], at_once):
        rows = slice(first, first + at_once)
        positions = chosen[rows].clamp(min=0)
        slots = step.slots(step.sequence[rows].unsqueeze(1), positions, cache.geometry.block_size)
        keys = cache.gather(layer, slots)[0][:, :, 0].float()
        scores = q[rows, 0].float() @ keys.transpose(1, 2) * how.scale
        scores = scores.masked_fill((chosen[rows] < 0).unsqueeze(1), -torch.inf)
        out[rows, 0] = torch.softmax(scores, dim=2) @ keys
    return out
