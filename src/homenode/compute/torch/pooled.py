"""Windows of tokens that are pooled to one row each, attention to these beside tokens, and the weights of streams."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from homenode.compute.ops import PooledKeys
from homenode.compute.torch.kv import TorchKvCache
from homenode.compute.torch.scoring import Scoring
from homenode.compute.torch.state import StateStep, kept_and_read
from homenode.compute.torch.step import DeviceStep

_SCORES = 2**24  # that there are at once


def pool_windows(
    step: DeviceStep,
    state: StateStep,
    x: torch.Tensor,
    biases: Sequence[torch.Tensor],
    tails: torch.Tensor,
    ratio: int,
    widths: Sequence[int],
    overlap: bool,
) -> torch.Tensor:
    """See `Ops.pool_windows`. tails: [slots, taps, columns]."""
    step.by_values = True  # which rows end a window
    ends = (step.positions % ratio == ratio - 1).nonzero().squeeze(1)
    windows = kept_and_read(state, x, tails, ends)
    begins = (step.positions[ends] < ratio)[:, None, None]  # there is no window before
    out, series = x.new_zeros(len(x), sum(widths)), 2 if overlap else 1
    column = to = 0
    for width, bias in zip(widths, biases, strict=True):
        both, plus = windows[..., column : column + 2 * series * width], bias.view(ratio, -1)
        values, gates = both[:, -ratio:].split(series * width, dim=2)
        gates = gates + plus
        if overlap:
            first, before = both[:, -2 * ratio : -ratio].split(2 * width, dim=2)
            before = (before + plus)[..., :width].masked_fill(begins, -torch.inf)
            gates = torch.cat([before, gates[..., width:]], dim=1)
            values = torch.cat([first[..., :width], values[..., width:]], dim=1)
        shares = torch.exp(gates - gates.amax(dim=1, keepdim=True))
        out[ends, to : to + width] = (values * (shares / shares.sum(dim=1, keepdim=True))).sum(dim=1)
        column, to = column + 2 * series * width, to + width
    return out


def attend_to_both(
    q: torch.Tensor, cache: TorchKvCache, layer: int, step: DeviceStep, how: Scoring, pooled: PooledKeys
) -> torch.Tensor:
    """q [tokens, heads, width] over the keys of a window of tokens and those of pooled windows, all of which are
    stored: as wide as the keys.
    """
    step.by_values = True
    out, size = torch.empty_like(q), cache.geometry.block_size
    for sequence, context in enumerate(step.host.context_len.tolist()):
        begin, end = (int(step.host.query_start[sequence + i]) for i in (0, 1))
        first = max(0, context - (end - begin) - (how.window or context) + 1)
        near = torch.arange(first, context, device=q.device)
        ends = torch.arange(1, context // pooled.ratio + 1, device=q.device) * pooled.ratio - 1
        slots, of_rows = (step.slots(torch.full_like(at, sequence), at, size) for at in (near, ends))
        tokens = cache.gather(layer, slots)[0][:, 0]
        keys = torch.cat([tokens, cache.gather_windows(pooled.layer, of_rows, pooled.ratio, q.shape[2])]).float()
        at_once = max(1, _SCORES // (q.shape[1] * len(keys)))
        for row in range(begin, end, at_once):
            rows = slice(row, min(row + at_once, end))
            own = step.positions[rows].unsqueeze(1)
            seen = (near <= own) & (near > own - (how.window or context))
            also = ends <= own
            if pooled.chosen is not None:
                of_ends = (pooled.chosen[rows] // pooled.ratio).where(pooled.chosen[rows] >= 0, len(ends))
                marks = torch.zeros(len(own), len(ends) + 1, dtype=torch.bool, device=q.device)
                also = also & marks.scatter_(1, of_ends, True)[:, :-1]
            scores = q[rows] @ keys.T * how.scale
            scores = scores.masked_fill(~torch.cat([seen, also], dim=1).unsqueeze(1), -torch.inf)
            if how.sinks is not None:
                scores = torch.cat([scores, how.sinks.expand(len(own), -1).unsqueeze(2)], dim=2)
            out[rows] = torch.softmax(scores, dim=2)[..., : len(keys)] @ keys
    return out


def stream_weights(
    mixes: torch.Tensor, scales: torch.Tensor, base: torch.Tensor, streams: int, rounds: int, eps: float
) -> torch.Tensor:
    """See `Ops.stream_weights`."""
    lengths = (streams,) if mixes.shape[1] == streams else (streams, streams, streams * streams)
    parts = [
        mix * scales[i] + plus
        for i, (mix, plus) in enumerate(zip(mixes.split(lengths, 1), base.split(lengths), strict=True))
    ]
    joining = 1 / (1 + torch.exp(-parts[0])) + eps
    if len(parts) == 1:
        return joining
    going, matrix = 2 / (1 + torch.exp(-parts[1])), parts[2].view(-1, streams, streams)
    matrix = torch.exp(matrix - matrix.amax(dim=2, keepdim=True))
    matrix = matrix / matrix.sum(dim=2, keepdim=True) + eps
    for axis in (1, *(2, 1) * (rounds - 1)):
        matrix = matrix / (matrix.sum(dim=axis, keepdim=True) + eps)
    return torch.cat([joining, going, matrix.transpose(1, 2).reshape(len(mixes), -1)], dim=1)
