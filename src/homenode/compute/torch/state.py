"""State memory of a torch device, and what computes with it: the short convolution and the gated delta rule, one token
after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from homenode.compute.ops import DeltaHeads, StateGeometry, StepArrays

_NORM_EPSILON = 1e-6  # of the lengths of queries and keys


class TorchStateMemory:
    """Of each layer the last inputs of its convolution [slots, taps, channels] and its matrices [slots, heads,
    key_width, value_width], float32.
    """

    def __init__(self, geometry: StateGeometry, slots: int, device: torch.device) -> None:
        self.tails = [torch.zeros(slots, layer.taps, layer.channels, device=device) for layer in geometry.layers]
        self.matrices = [
            torch.zeros(slots, layer.heads, layer.key_width, layer.value_width, device=device)
            for layer in geometry.layers
        ]

    @property
    def nbytes(self) -> int:
        """Bytes really held."""
        return sum(kept.nbytes for kept in (*self.tails, *self.matrices))

    def copy_slot(self, source: int, target: int) -> None:
        """Make slot `target` what slot `source` is. While no step runs."""
        for kept in (*self.tails, *self.matrices):
            kept[target] = kept[source]


@dataclass(frozen=True)
class _Sequence:
    """Rows first .. past - 1 of a step. `copies`: slots, and after how many of the rows each gets the state."""

    slot: int
    first: int
    past: int
    fresh: bool
    copies: tuple[tuple[int, int], ...]


def _sequences(step: StepArrays) -> Iterator[_Sequence]:
    """ValueError where the step has no slots."""
    if step.state_slot is None or step.state_fresh is None:
        raise ValueError("the step names no slots of the state memory")
    copies = [] if step.state_copies is None else step.state_copies.tolist()
    for i, slot in enumerate(step.state_slot.tolist()):
        first, past = int(step.query_start[i]), int(step.query_start[i + 1])
        begin = int(step.positions[first]) if past > first else 0
        own = tuple((to, at - begin + 1) for sequence, to, at in copies if sequence == i)
        yield _Sequence(slot, first, past, bool(step.state_fresh[i]), own)


def short_convolution(
    step: StepArrays,
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    tails: torch.Tensor,
) -> torch.Tensor:
    """See `Ops.short_convolution`, without silu. tails: [slots, taps, columns]."""
    taps, columns = tails.shape[1:]
    by_tap = torch.cat(list(weights)).view(columns, taps + 1).T
    out = torch.empty(x.shape, device=x.device)
    for one in _sequences(step):
        count = one.past - one.first
        before = torch.zeros_like(tails[one.slot]) if one.fresh else tails[one.slot]
        inputs = torch.cat([before, x[one.first : one.past]])
        total = (
            torch.cat(list(biases)).expand(count, columns) if biases else torch.zeros(count, columns, device=x.device)
        )
        for tap in range(taps + 1):
            total = total + by_tap[tap] * inputs[tap : tap + count]
        out[one.first : one.past] = total
        for slot, done in (*one.copies, (one.slot, count)):
            tails[slot] = inputs[done : done + taps]
    return out


def delta_rule(
    step: StepArrays,
    qkv: torch.Tensor,
    gates: tuple[torch.Tensor, torch.Tensor],
    matrices: torch.Tensor,
    how: DeltaHeads,
) -> torch.Tensor:
    """See `Ops.delta_rule`. matrices: [slots, heads, key_width, value_width]; `gates`: by how much a token's value
    counts, and how much of the state stays, [tokens, heads] each.
    """
    heads, key_width, value_width = matrices.shape[1:]
    numbers = torch.arange(heads, device=qkv.device)
    key_head = numbers % how.key_heads if how.interleaved else numbers // (heads // how.key_heads)
    q, k, v = qkv.split([how.key_heads * key_width] * 2 + [heads * value_width], dim=1)
    q, k = (_unit(part.reshape(len(qkv), how.key_heads, key_width))[:, key_head] for part in (q, k))
    q, v = q / key_width**0.5, v.reshape(len(qkv), heads, value_width)
    share, kept = gates
    out = torch.empty(len(qkv), heads, value_width, device=qkv.device)
    for one in _sequences(step):
        state = torch.zeros_like(matrices[one.slot]) if one.fresh else matrices[one.slot]
        copies = {done: slot for slot, done in one.copies}
        for row in range(one.first, one.past):
            state = state * kept[row, :, None, None]
            change = (v[row] - (state * k[row, :, :, None]).sum(dim=1)) * share[row, :, None]
            state = state + k[row, :, :, None] * change[:, None, :]
            out[row] = (state * q[row, :, :, None]).sum(dim=1)
            if (slot := copies.get(row - one.first + 1)) is not None:
                matrices[slot] = state
        matrices[one.slot] = state
    return out.reshape(len(qkv), -1)


def gates_of(
    beta: torch.Tensor, decay: torch.Tensor, decay_weight: torch.Tensor, decay_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """sigmoid(beta), and exp(decay_weight * softplus(decay + decay_bias))."""
    raised = decay + decay_bias
    softplus = torch.where(raised > 20, raised, torch.log1p(torch.exp(raised)))
    return 1 / (1 + torch.exp(-beta)), torch.exp(decay_weight * softplus)


def _unit(heads: torch.Tensor) -> torch.Tensor:
    return heads / torch.sqrt(heads.square().sum(dim=-1, keepdim=True) + _NORM_EPSILON)
