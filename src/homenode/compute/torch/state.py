"""State memory of a torch device, and what computes with it: the short convolution, the gated delta rule and the
recurrence of Mamba 2, one token after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from homenode.compute.ops import DeltaHeads, IntArray, ScanHeads, StateGeometry, StepArrays

_NORM_EPSILON = 1e-6  # of the lengths of queries and keys


class TorchStateMemory:
    """Memory of states: of each layer the last inputs of its convolution [slots, taps, channels] and its matrices
    [slots, heads, key_width, value_width], float32. The slot behind the last is nobody's: see `graphs`.
    """

    def __init__(self, geometry: StateGeometry, slots: int, device: torch.device) -> None:
        self.slots = slots
        self.tails = [torch.zeros(slots + 1, layer.taps, layer.channels, device=device) for layer in geometry.layers]
        self.matrices = [
            torch.zeros(slots + 1, layer.heads, layer.key_width, layer.value_width, device=device)
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


class StateStep:
    """The places of the states of a step's sequences, and the rows that go through them; worked out once for all
    layers.

    Sequences are numbered by how many rows they have, the longest first, so that those that have a row t are the first
    `running[t]`. `slots`, `fresh`, `firsts`: tensors [s] of the slot of each, whether its state is zeros whatever the
    slot holds, and its first row; the first two are int32, and a replayed step finds other values in them. `copies`:
    after how many rows which sequences' states go to which slots as well.
    """

    def __init__(
        self,
        slots: torch.Tensor,
        fresh: torch.Tensor,
        firsts: IntArray,
        counts: IntArray,
        copies: Mapping[int, Sequence[tuple[int, int]]],
    ) -> None:
        self.slots, self.fresh, self.copies = slots, fresh, copies
        self.firsts = torch.from_numpy(firsts).to(slots.device).long()
        self.running = [int((counts > row).sum()) for row in range(int(counts.max(initial=0)))]
        self._first_rows, self._counts = firsts, counts
        self._convolved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def inputs(self, taps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers of rows of [tails of all sequences, rows of the step]: [tokens, taps + 1] what each row's convolution
        reads, and [s, taps] what each sequence keeps.
        """
        if taps not in self._convolved:
            rows = np.empty((int(self._counts.sum()), taps + 1), np.int64)
            for sequence, (first, count) in enumerate(
                zip(self._first_rows.tolist(), self._counts.tolist(), strict=True)
            ):
                for tap in range(taps + 1):
                    rows[first : first + count, tap] = self._input(sequence, _rows(count) + (tap - taps), taps)
            kept = [self.kept_inputs(sequence, int(count), taps) for sequence, count in enumerate(self._counts)]
            device = self.slots.device
            self._convolved[taps] = torch.from_numpy(rows).to(device), torch.from_numpy(np.stack(kept)).to(device)
        return self._convolved[taps]

    def kept_inputs(self, sequence: int, done: int, taps: int) -> IntArray:
        """Return what a sequence keeps after so many of its rows, as `inputs` numbers it: [taps]."""
        return self._input(sequence, _rows(done, done - taps), taps)

    def _input(self, sequence: int, row: IntArray, taps: int) -> IntArray:
        """Return, of rows of a sequence, those before its first from its tail."""
        before = sequence * taps + taps + row
        found: IntArray = np.where(row < 0, before, len(self._counts) * taps + self._first_rows[sequence] + row)
        return found


def state_step(step: StepArrays, device: torch.device) -> StateStep | None:
    """Return the states of a step's arrays; None where they name no slots."""
    if step.state_slot is None or step.state_fresh is None:
        return None
    counts = np.diff(step.query_start)
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    number = {int(sequence): at for at, sequence in enumerate(order)}
    copies: dict[int, list[tuple[int, int]]] = {}
    for sequence, slot, position in [] if step.state_copies is None else step.state_copies.tolist():
        done = position - int(step.positions[step.query_start[sequence]]) + 1
        copies.setdefault(done, []).append((number[sequence], slot))
    slots, fresh = (torch.from_numpy(each[order]).to(device) for each in (step.state_slot, step.state_fresh))
    return StateStep(slots, fresh, step.query_start[:-1][order], counts[order], copies)


def short_convolution(
    step: StateStep,
    x: torch.Tensor,
    weights: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor],
    tails: torch.Tensor,
) -> torch.Tensor:
    """See `Ops.short_convolution`, without silu. tails: [slots, taps, columns]."""
    taps, columns = tails.shape[1:]
    by_tap = torch.cat(list(weights)).view(columns, taps + 1).T
    inputs, rows = _inputs(step, x, tails)
    total = torch.cat(list(biases)).expand(x.shape) if biases else torch.zeros(x.shape, device=x.device)
    for tap in range(taps + 1):
        total = total + by_tap[tap] * inputs[rows[:, tap]]
    return total


def kept_and_read(step: StateStep, x: torch.Tensor, tails: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Keeps the last rows of x of each sequence in tails [slots, taps, columns]. The result is what each `wanted` row
    of the step and those before it have, [rows, taps + 1, columns], the earliest first.
    """
    inputs, rows = _inputs(step, x, tails)
    return inputs[rows[wanted]]


def _inputs(step: StateStep, x: torch.Tensor, tails: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what tails and x have, and the numbers of its rows that each row of x reads; tails then have
    what is kept.
    """
    taps, columns = tails.shape[1:]
    rows, kept = step.inputs(taps)
    inputs = torch.cat([_states(step, tails).view(-1, columns), x])
    for done, copied in step.copies.items():
        for sequence, slot in copied:
            tails[slot] = inputs[torch.from_numpy(step.kept_inputs(sequence, done, taps)).to(x.device)]
    tails[step.slots.long()] = inputs[kept]
    return inputs, rows


def delta_rule(
    step: StateStep,
    qkv: torch.Tensor,
    gates: tuple[torch.Tensor, torch.Tensor],
    matrices: torch.Tensor,
    how: DeltaHeads,
) -> torch.Tensor:
    """See `Ops.delta_rule`. matrices: [slots, heads, key_width, value_width]; `gates`: by how much a token's value
    counts, [tokens, heads], and how much of the state stays, [tokens, heads, 1 or key_width].
    """
    heads, key_width, value_width = matrices.shape[1:]
    numbers = torch.arange(heads, device=qkv.device)
    key_head = numbers % how.key_heads if how.interleaved else numbers // (heads // how.key_heads)
    q, k, v = qkv.split([how.key_heads * key_width] * 2 + [heads * value_width], dim=1)
    q, k = (_unit(part.reshape(len(qkv), how.key_heads, key_width))[:, key_head] for part in (q, k))
    q, v = q / key_width**0.5, v.reshape(len(qkv), heads, value_width)
    share, kept = gates
    out = torch.empty(len(qkv), heads, value_width, device=qkv.device)

    def advance(state: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        state = state * kept[rows, :, :, None]
        change = (v[rows] - (state * k[rows, :, :, None]).sum(dim=2)) * share[rows, :, None]
        state = state + k[rows, :, :, None] * change[:, :, None, :]
        out[rows] = (state * q[rows, :, :, None]).sum(dim=2)
        return state

    _advance(step, matrices, advance)
    return out.reshape(len(qkv), -1)


def selective_scan(
    step: StateStep,
    xbc: torch.Tensor,
    gates: tuple[torch.Tensor, torch.Tensor],
    skip: torch.Tensor,
    matrices: torch.Tensor,
    how: ScanHeads,
) -> torch.Tensor:
    """See `Ops.selective_scan`. matrices: [slots, heads, key_width, value_width]; `gates`: by how much a token's value
    counts, and how much of the state stays, [tokens, heads] each.
    """
    heads, key_width, value_width = matrices.shape[1:]
    group = (how.first + torch.arange(heads, device=xbc.device)) // how.per_group
    inner = heads * value_width
    x = xbc[:, :inner].reshape(len(xbc), heads, value_width)
    b, c = (part.reshape(len(xbc), -1, key_width)[:, group] for part in xbc[:, inner:].chunk(2, dim=1))
    share, kept = gates
    entering = x * share[:, :, None]
    out = torch.empty(len(xbc), heads, value_width, device=xbc.device)

    def advance(state: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        state = state * kept[rows, :, None, None] + b[rows, :, :, None] * entering[rows, :, None, :]
        out[rows] = (state * c[rows, :, :, None]).sum(dim=2)
        return state

    _advance(step, matrices, advance)
    return (out + skip[:, None] * x).reshape(len(xbc), -1)


def _advance(
    step: StateStep, matrices: torch.Tensor, advance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    """Take the step's sequences through their rows, one after the other: `advance` gives the states of some, [s, heads,
    key_width, value_width], after their next rows, by the numbers of these.
    """
    states = _states(step, matrices)
    for done, running in enumerate(step.running):
        states[:running] = advance(states[:running], step.firsts[:running] + done)
        for sequence, slot in step.copies.get(done + 1, ()):
            matrices[slot] = states[sequence]
    matrices[step.slots.long()] = states


def _rows(end: int, first: int = 0) -> IntArray:
    return np.arange(first, end, dtype=np.int32)


def _states(step: StateStep, memory: torch.Tensor) -> torch.Tensor:
    """A copy of what a layer keeps of the step's sequences."""
    return memory[step.slots.long()].masked_fill_(step.fresh.bool().view(-1, *[1] * (memory.dim() - 1)), 0)


def gates_of(
    beta: torch.Tensor, decay: torch.Tensor, decay_weight: torch.Tensor, decay_bias: torch.Tensor, gain: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """gain * sigmoid(beta) [tokens, heads], and exp(decay_weight * softplus(decay + decay_bias)), as many of each
    head.
    """
    faded = softplus(decay + decay_bias).reshape(*beta.shape, -1)
    return gain / (1 + torch.exp(-beta)), torch.exp(decay_weight[:, None] * faded)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """ln(1 + e^x). Not torch's own, whose bits depend on where an element lies."""
    return torch.where(x > 20, x, torch.log1p(torch.exp(x)))


def _unit(heads: torch.Tensor) -> torch.Tensor:
    return heads / torch.sqrt(heads.square().sum(dim=-1, keepdim=True) + _NORM_EPSILON)
