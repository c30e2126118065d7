"""Attention by torch's scaled_dot_product_attention over gathered keys.

Sequences that decode are computed together with those whose contexts have about the same length (within a power of
two), so that a long one makes no others longer; each prompt's chunk is computed by itself. Query heads of one KV head
stand as rows below each other: keys are not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from homenode.compute.torch.kv import TorchKvCache
from homenode.compute.torch.scoring import Scoring
from homenode.compute.torch.step import DeviceStep
from homenode.compute.torch.tiled import tiled_attention

_SHORTEST = 64  # keys
_MASKED = 2**24  # elements of a mask, which kernels may widen to floats


@dataclass(frozen=True)
class DecodingGroup:
    """Sequences of one token each: their rows of the step, their numbers, and a length that holds the
    context of each.
    """

    rows: torch.Tensor
    sequences: torch.Tensor
    length: int


@dataclass(frozen=True)
class PromptChunk:
    """Rows begin .. end - 1 of the step: the last tokens of a context of this length."""

    begin: int
    end: int
    sequence: int
    context: int


@dataclass(frozen=True)
class Grouped:
    """A step divided so."""

    decoding: Sequence[DecodingGroup]
    chunks: Sequence[PromptChunk]


def sdpa_attention(q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, how: Scoring) -> torch.Tensor:
    """See `Attention`. Layers with a softcap, sinks, slopes or biases, which torch's function has no word for, those
    with chunks, and those that see what comes behind are computed in tiles.
    """
    plain = how.window_kind == "sliding" and how.mask == "causal"
    if (
        how.softcap is not None
        or how.sinks is not None
        or how.slopes is not None
        or how.biases is not None
        or not plain
    ):
        return tiled_attention(q, cache, layer, step, how)
    if "grouped" not in step.planned:
        step.planned["grouped"] = group_step(step, cache.geometry.block_size)
    grouped: Grouped = step.planned["grouped"]
    out = torch.empty_like(q)
    for number, some in enumerate(grouped.decoding):
        out[some.rows] = _decode(q[some.rows], cache, layer, step, how, number, some)
    for chunk in grouped.chunks:
        _prefill(q, out, cache, layer, step, how, chunk)
    return out


def group_step(step: DeviceStep, block_size: int) -> Grouped:
    """Divide the sequences of a step."""
    if step.captured:
        everybody = torch.arange(step.ids.shape[0], device=step.ids.device)
        return Grouped([DecodingGroup(everybody, everybody, step.table.shape[1] * block_size)], [])
    starts, contexts = step.host.query_start, step.host.context_len
    counts = np.diff(starts)
    one = np.flatnonzero(counts == 1)
    lengths = np.array([max(_SHORTEST, 1 << (int(context) - 1).bit_length()) for context in contexts[one]])
    decoding = []
    for length in np.unique(lengths):
        sequences = one[lengths == length]
        rows, numbers = (
            torch.from_numpy(part.astype(np.int64)).to(step.ids.device) for part in (starts[sequences], sequences)
        )
        decoding.append(DecodingGroup(rows, numbers, int(length)))
    chunks = [
        PromptChunk(int(starts[i]), int(starts[i + 1]), int(i), int(contexts[i])) for i in np.flatnonzero(counts > 1)
    ]
    return Grouped(decoding, chunks)


def _decode(
    q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, how: Scoring, number: int, some: DecodingGroup
) -> torch.Tensor:
    """q [sequences, kv_heads, group, head_dim] of the newest tokens."""
    known = step.planned.get(("decode", number, how.window))
    if known is None:
        known = step.planned[("decode", number, how.window)] = _keys_of(
            step, some, how.window, cache.geometry.block_size
        )
    slots, seen = known
    keys, values = (side.transpose(1, 2) for side in cache.gather(layer, slots))
    return scaled_dot_product_attention(q.to(keys.dtype), keys, values, attn_mask=seen, scale=how.scale).float()


def _keys_of(
    step: DeviceStep, some: DecodingGroup, window: int | None, block_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots [sequences, keys] of the keys a newest token may see, and which of them it does see, bool [sequences, 1, 1,
    keys].
    """
    newest = step.context[some.sequences].unsqueeze(1) - 1
    length = some.length if window is None else min(some.length, window)
    first = 0 if window is None else (newest - window + 1).clamp(min=0)
    positions = first + torch.arange(length, device=newest.device)
    slots = step.slots(some.sequences.unsqueeze(1), torch.minimum(positions, newest), block_size)
    return slots, (positions <= newest)[:, None, None]


def _prefill(
    q: torch.Tensor,
    out: torch.Tensor,
    cache: TorchKvCache,
    layer: int,
    step: DeviceStep,
    how: Scoring,
    chunk: PromptChunk,
) -> None:
    """Fill rows begin .. end - 1 of `out`."""
    oldest = chunk.context - (chunk.end - chunk.begin)
    if (chunk, how.window) not in step.planned:
        first = 0 if how.window is None else max(0, oldest - how.window + 1)
        seen_at = torch.arange(first, chunk.context, device=q.device)
        step.planned[(chunk, how.window)] = (
            seen_at,
            step.slots(torch.full_like(seen_at, chunk.sequence), seen_at, cache.geometry.block_size),
        )
    positions, slots = step.planned[(chunk, how.window)]
    keys, values = (side.transpose(0, 1).unsqueeze(0) for side in cache.gather(layer, slots))
    heads, group = q.shape[1], q.shape[2]
    if oldest == 0 and how.window is None:
        mine = (
            q[chunk.begin : chunk.end]
            .reshape(chunk.context, heads * group, -1)
            .transpose(0, 1)
            .unsqueeze(0)
            .to(keys.dtype)
        )
        found = scaled_dot_product_attention(mine, keys, values, is_causal=True, scale=how.scale, enable_gqa=group > 1)
        out[chunk.begin : chunk.end] = found[0].transpose(0, 1).reshape(chunk.context, heads, group, -1).float()
        return
    at_once = max(1, _MASKED // (group * positions.shape[0]))
    for begin in range(chunk.begin, chunk.end, at_once):
        end = min(begin + at_once, chunk.end)
        asking = step.positions[begin:end].unsqueeze(1)
        seen = positions <= asking
        if how.window is not None:
            seen &= positions > asking - how.window
        mine = q[begin:end].transpose(0, 1).reshape(1, heads, (end - begin) * group, -1).to(keys.dtype)
        found = scaled_dot_product_attention(
            mine, keys, values, attn_mask=seen.repeat_interleave(group, dim=0), scale=how.scale
        )
        out[begin:end] = found[0].view(heads, end - begin, group, -1).transpose(0, 1).float()
