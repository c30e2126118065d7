"""Attention over chosen tokens, and the choice: a few tokens at a time, the keys that they are about gathered for
each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from homenode.compute.torch.kv import TorchKvCache
from homenode.compute.torch.scoring import Scoring
from homenode.compute.torch.step import DeviceStep

_GATHERED = 2**24  # elements of keys, or scores, that there are at once


@dataclass(frozen=True)
class Blocks:
    """`count` blocks of `size` positions are chosen, the last `local` in any case."""

    size: int
    count: int
    local: int


def choose_positions(
    q: torch.Tensor, weights: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, count: int, ratio: int
) -> torch.Tensor:
    """Positions [tokens, count], -1 behind the last, by queries [tokens, heads, width] and weights [tokens, heads].
    Only every `ratio`-th is chosen.
    """
    found = torch.full((q.shape[0], count), -1, dtype=torch.int64, device=q.device)
    for rows, products in _products(q, cache, layer, step, ratio):
        positions = torch.arange(1, products.shape[2] + 1, device=q.device) * ratio - 1
        scores = (weights[rows].unsqueeze(1) @ torch.relu(products)).squeeze(1)
        unseen = positions > step.positions[rows].unsqueeze(1)
        scores = scores.masked_fill(unseen, -torch.inf)
        best = scores.argsort(dim=1, descending=True, stable=True)[:, :count]
        found[rows, : best.shape[1]] = positions[best].masked_fill(unseen.gather(1, best), -1)
    return found


def choose_best_blocks(
    q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, blocks: Blocks
) -> torch.Tensor:
    """Numbers of blocks [tokens, heads * count], -1 behind the last of a head, by queries [tokens, heads, width]."""
    found = torch.full((*q.shape[:2], blocks.count), -1, dtype=torch.int64, device=q.device)
    for rows, products in _products(q, cache, layer, step):
        own = step.positions[rows][:, None, None]
        positions = torch.arange(products.shape[2], device=q.device)
        products = products.masked_fill(positions > own, -torch.inf)
        past = -products.shape[2] % blocks.size
        scores = torch.nn.functional.pad(products, (0, past), value=-torch.inf).unflatten(2, (-1, blocks.size)).amax(3)
        numbers, last = torch.arange(scores.shape[2], device=q.device), own // blocks.size
        scores = scores.masked_fill((numbers > last - blocks.local) & (numbers <= last), torch.inf)
        best = scores.argsort(dim=2, descending=True, stable=True)[..., : blocks.count]
        found[rows, :, : best.shape[2]] = best.masked_fill(best > last, -1)
    return found.flatten(1)


def _products(
    q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, ratio: int = 1
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Some tokens of a sequence at a time, and the products of their queries with the keys of its whole context, of
    each token or of each window of `ratio`.
    """
    step.by_values = True
    for sequence, context in enumerate(step.host.context_len):
        begin, end = (int(step.host.query_start[sequence + i]) for i in (0, 1))
        positions = torch.arange(1, int(context) // ratio + 1, device=q.device) * ratio - 1
        slots = step.slots(torch.full_like(positions, sequence), positions, cache.geometry.block_size)
        kept = (
            cache.gather(layer, slots)[0][:, 0] if ratio == 1 else cache.gather_windows(layer, slots, ratio, q.shape[2])
        )
        keys = kept.float()
        at_once = max(1, _GATHERED // (q.shape[1] * int(context)))
        for first in range(begin, end, at_once):
            rows = slice(first, min(first + at_once, end))
            yield rows, q[rows] @ keys.T


def chosen_attention(
    q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, how: Scoring, chosen: torch.Tensor, block: int
) -> torch.Tensor:
    """q [tokens, heads, group, width] over the keys at `chosen`, blocks of `block` positions for each head. Where a
    layer keeps keys alone they are the values, too.
    """
    out, of_heads = torch.empty_like(q), chosen.reshape(q.shape[0], q.shape[1], -1, 1)
    at_once = max(1, _GATHERED // (of_heads.shape[2] * block * q.shape[1] * q.shape[3]))
    within = torch.arange(block, device=q.device)
    for first, head in itertools.product(range(0, q.shape[0], at_once), range(q.shape[1])):
        rows = slice(first, first + at_once)
        blocks = of_heads[rows, head]
        positions = (blocks.clamp(min=0) * block + within).flatten(1)
        unseen = (positions > step.positions[rows].unsqueeze(1)) | (blocks < 0).expand(-1, -1, block).flatten(1)
        slots = step.slots(step.sequence[rows].unsqueeze(1), positions.where(~unseen, 0), cache.geometry.block_size)
        keys, values = (side[:, :, head].float() for side in cache.gather(layer, slots))
        scores = q[rows, head].float() @ keys.transpose(1, 2) * how.scale
        out[rows, head] = torch.softmax(scores.masked_fill(unseen.unsqueeze(1), -torch.inf), dim=2) @ values
    return out
