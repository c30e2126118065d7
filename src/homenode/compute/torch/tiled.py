"""Attention in tiles of one shape: QUERIES tokens of a sequence over KEYS of its keys at a time, with a running
softmax.

Every product has the same shape whatever the step holds, and tiles of keys are counted from position 0 and taken in
ascending order: what a query gets depends on its own sequence only. Keys beyond a query's sight add exact zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from homenode.compute.ops import AttentionMask
from homenode.compute.torch.kv import TorchKvCache
from homenode.compute.torch.scoring import Scoring
from homenode.compute.torch.step import DeviceStep

QUERIES = 8
KEYS = 256
_GATHERED = 2**24  # elements of keys and of values that are brought together at once


@dataclass(frozen=True)
class QueryTiles:
    """Tiles of a step, [t] each, in ascending order of the keys they see; all as tensors but `last_key`.

    `tokens` [t, QUERIES]: rows of the step, the last one of a sequence again where it has no more. `last_key`: the
    newest position a tile sees.
    """

    tokens: torch.Tensor
    sequences: torch.Tensor
    first_key_of: np.ndarray[tuple[int], np.dtype[np.int64]]
    last_key: np.ndarray[tuple[int], np.dtype[np.int64]]


def tiled_attention(q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, how: Scoring) -> torch.Tensor:
    """See `Attention`."""
    step.by_values = True
    planned = ("tiles", how.mask)
    if planned not in step.planned:
        step.planned[planned] = _tiles(step, how.mask)
    tiles: QueryTiles = step.planned[planned]
    out = torch.empty_like(q)
    at_once = max(1, _GATHERED // (KEYS * q.shape[1] * q.shape[3]))
    for begin in range(0, len(tiles.last_key), at_once):
        some = slice(begin, begin + at_once)
        tokens = tiles.tokens[some]
        found = _attend(q[tokens], cache, layer, step, how, tiles, some)
        out[tokens.reshape(-1)] = found.reshape(-1, *q.shape[1:])
    return out


def _tiles(step: DeviceStep, mask: AttentionMask) -> QueryTiles:
    starts, contexts = step.host.query_start.astype(np.int64), step.host.context_len.astype(np.int64)
    counts = np.diff(starts)
    per_sequence = -(-counts // QUERIES)
    sequences = np.repeat(np.arange(len(counts)), per_sequence)
    number = np.arange(len(sequences)) - np.repeat(np.cumsum(per_sequence) - per_sequence, per_sequence)
    within = number[:, None] * QUERIES + np.arange(QUERIES)
    within = np.minimum(within, counts[sequences][:, None] - 1)
    positions = contexts[sequences] - counts[sequences]
    first, last = positions + within[:, 0], positions + within[:, -1]
    if mask == "all":
        last = contexts[sequences] - 1
    order = np.argsort(last, kind="stable")
    tokens = (starts[sequences][:, None] + within)[order]
    device = step.ids.device
    return QueryTiles(
        torch.from_numpy(tokens).to(device), torch.from_numpy(sequences[order]).to(device), first[order], last[order]
    )


def _attend(
    q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, how: Scoring, tiles: QueryTiles, some: slice
) -> torch.Tensor:
    """Attend for the tiles `some`: q [t, QUERIES, kv_heads, group, head_dim] -> the same."""
    count, queries, kv_heads, group, width = q.shape
    last = tiles.last_key[some]
    seen_from = max(0, how.first_seen(int(tiles.first_key_of[some].min())))
    rows = q.permute(0, 2, 1, 3, 4).reshape(count, kv_heads, queries * group, width)
    largest = rows.new_full((count, kv_heads, queries * group, 1), -torch.inf)
    total, sums = torch.zeros_like(largest), torch.zeros_like(rows)
    for first in range(seen_from // KEYS * KEYS, int(last.max()) + 1, KEYS):
        reached = int(np.searchsorted(last, first))  # tiles stand in ascending order: those before see nothing here
        part = slice(reached, None)
        scores, values = _scores(
            rows[part], cache, layer, step, how, tiles, slice(some.start + reached, some.start + count), first
        )
        top = torch.maximum(largest[part], scores.amax(dim=-1, keepdim=True))
        base = torch.where(top == -torch.inf, 0, top)
        weights, fade = torch.exp(scores - base), torch.exp(largest[part] - base)
        total[part] = total[part] * fade + weights.sum(dim=-1, keepdim=True)
        sums[part] = sums[part] * fade + _batched(weights, values)
        largest[part] = top
    if how.sinks is not None:
        sinks = how.sinks.view(1, kv_heads, 1, group).expand(count, kv_heads, queries, group).reshape(largest.shape)
        total = total + torch.exp(sinks - largest)
    found = sums / total
    return found.view(count, kv_heads, queries, group, width).permute(0, 2, 1, 3, 4)


def _scores(
    rows: torch.Tensor,
    cache: TorchKvCache,
    layer: int,
    step: DeviceStep,
    how: Scoring,
    tiles: QueryTiles,
    some: slice,
    first: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [t, kv_heads, QUERIES * group, KEYS] of the keys from position `first` on, -inf for those not seen, and
    their values.
    """
    slots, masks = _keys_of(step, tiles, first, cache.geometry.block_size, how)
    keys, values = (side.float().transpose(1, 2) for side in cache.gather(layer, slots[some]))
    scores = _batched(rows, keys.transpose(2, 3)) * how.scale
    if how.biases is not None or how.slopes is not None:
        apart = torch.arange(first, first + KEYS, device=rows.device) - step.positions[tiles.tokens[some]].unsqueeze(2)
    if how.biases is not None:
        reach = how.biases.shape[1] // 2
        biases = how.biases.view(rows.shape[1], -1, 2 * reach + 1)[..., apart.clip(-reach, reach).long() + reach]
        scores = scores + biases.permute(2, 0, 3, 1, 4).reshape(scores.shape)
    if how.slopes is not None:
        slopes = how.slopes.view(1, rows.shape[1], 1, -1, 1)
        scores = scores - (slopes * apart[:, None, :, None].abs().float()).reshape(scores.shape)
    if how.softcap is not None:
        scores = how.softcap * torch.tanh(scores / how.softcap)
    count, kv_heads, queries, _ = rows.shape
    unseen = masks[some].unsqueeze(2).unsqueeze(1)  # [t, 1, QUERIES, 1, KEYS]
    shaped = scores.view(count, kv_heads, QUERIES, queries // QUERIES, KEYS).masked_fill(unseen, -torch.inf)
    return shaped.view(scores.shape), values


def _keys_of(
    step: DeviceStep, tiles: QueryTiles, first: int, block_size: int, how: Scoring
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for all tiles: slots [t, KEYS] of the keys from `first` on, and which query does not see which, bool [t,
    QUERIES, KEYS].

    Beyond a sequence's end its last key stands in: a number that is surely finite, for a weight of zero.
    """
    wanted = ("keys", first, how.window, how.window_kind, how.mask)
    known = step.planned.get(wanted)
    if known is None:
        positions = torch.arange(first, first + KEYS, device=step.ids.device)
        newest = step.context[tiles.sequences].unsqueeze(1) - 1
        there = torch.minimum(positions, newest)
        asking = step.positions[tiles.tokens].unsqueeze(2)
        unseen = positions > (newest.unsqueeze(2) if how.mask == "all" else asking)
        unseen = unseen | (positions < how.first_seen(asking))
        if how.mask == "all" and how.window is not None:
            unseen = unseen | (positions >= asking + how.window)
        known = step.planned[wanted] = (
            step.slots(tiles.sequences.unsqueeze(1), there, block_size),
            unseen,
        )
    slots, unseen = known
    return slots, unseen


def _batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Products of the last two dimensions, one by one for the first two."""
    found = torch.bmm(a.reshape(-1, *a.shape[2:]), b.reshape(-1, *b.shape[2:]))
    return found.view(*a.shape[:2], *found.shape[1:])
