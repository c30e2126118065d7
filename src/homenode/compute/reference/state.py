"""State memory of the reference backend, and what computes with it: the short convolution, the gated delta rule and
the recurrence of Mamba 2, one token after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from homenode.compute.ops import DeltaHeads, FloatArray, ScanHeads, StateGeometry, StepArrays

_NORM_EPSILON = np.float32(1e-6)  # of the lengths of queries and keys


class ReferenceStateMemory:
    """Memory of states: of each layer the last inputs of its convolution [slots, taps, channels] and its matrices
    [slots, heads, key_width, value_width], float32.
    """

    def __init__(self, geometry: StateGeometry, slots: int) -> None:
        self.geometry = geometry
        self.slots = slots
        self.tails = [np.zeros((slots, layer.taps, layer.channels), np.float32) for layer in geometry.layers]
        self.matrices = [
            np.zeros((slots, layer.heads, layer.key_width, layer.value_width), np.float32) for layer in geometry.layers
        ]

    @property
    def nbytes(self) -> int:
        """Bytes really held."""
        return sum(kept.nbytes for kept in (*self.tails, *self.matrices))

    def copy_slot(self, source: int, target: int) -> None:
        """See `StateMemory.copy_slot`."""
        for kept in (*self.tails, *self.matrices):
            kept[target] = kept[source]


def short_convolution(
    step: StepArrays, x: FloatArray, weights: FloatArray, biases: FloatArray | None, tails: FloatArray, silu: bool
) -> FloatArray:
    """See `Ops.short_convolution`. weights: [columns * (taps + 1)]; tails: [slots, taps, columns]."""
    taps, columns = tails.shape[1:]
    by_tap = weights.reshape(columns, taps + 1).T
    out = np.empty(x.shape, np.float32)
    for row, slot, begins, copied_to in _rows(step):
        if begins:
            tails[slot] = 0
        inputs = np.concatenate([tails[slot], x[row : row + 1]])
        total = np.zeros(columns, np.float32) if biases is None else biases.copy()
        for weight, values in zip(by_tap, inputs, strict=True):
            total += weight * values
        with np.errstate(over="ignore"):
            out[row] = total / (1 + np.exp(-total)) if silu else total
        tails[slot] = inputs[1:]
        for to in copied_to:
            tails[to] = tails[slot]
    return out


def pool_windows(
    step: StepArrays,
    x: FloatArray,
    biases: Sequence[FloatArray],
    tails: FloatArray,
    ratio: int,
    widths: Sequence[int],
    overlap: bool,
) -> FloatArray:
    """See `Ops.pool_windows`. tails: [slots, taps, columns]."""
    out, series = np.zeros((len(x), sum(widths)), np.float32), 2 if overlap else 1
    for row, slot, begins, copied_to in _rows(step):
        if begins:
            tails[slot] = 0
        inputs = np.concatenate([tails[slot], x[row : row + 1]])
        position = int(step.positions[row])
        if position % ratio == ratio - 1:
            column, to = 0, 0
            for width, bias in zip(widths, biases, strict=True):
                both = inputs[:, column : column + 2 * series * width]
                values, gates = both[-ratio:, : series * width], both[-ratio:, series * width :]
                gates = gates + bias.reshape(ratio, -1)
                if overlap:
                    before = both[-2 * ratio : -ratio]
                    first = before[:, 2 * width : 3 * width] + bias.reshape(ratio, -1)[:, :width]
                    if position < ratio:  # there is no window before
                        first = np.full_like(first, -np.inf)
                    gates = np.concatenate([first, gates[:, width:]])
                    values = np.concatenate([before[:, :width], values[:, width:]])
                shares = np.exp(gates - gates.max(axis=0))
                out[row, to : to + width] = (values * (shares / shares.sum(axis=0))).sum(axis=0)
                column, to = column + 2 * series * width, to + width
        tails[slot] = inputs[1:]
        for copy in copied_to:
            tails[copy] = tails[slot]
    return out


def delta_rule(
    step: StepArrays,
    qkv: FloatArray,
    beta: FloatArray,
    decay: FloatArray,
    decay_weight: FloatArray,
    decay_bias: FloatArray,
    matrices: FloatArray,
    how: DeltaHeads,
) -> FloatArray:
    """See `Ops.delta_rule`. matrices: [slots, heads, key_width, value_width]."""
    heads, key_width, value_width = matrices.shape[1:]
    numbers = np.arange(heads)
    key_head = numbers % how.key_heads if how.interleaved else numbers // (heads // how.key_heads)
    keys = how.key_heads * key_width
    with np.errstate(over="ignore"):
        share = np.asarray(how.gain / (1 + np.exp(-beta)), np.float32)
    faded = _softplus(decay + decay_bias).reshape(len(qkv), heads, -1)
    kept = np.exp(decay_weight[:, None] * faded)
    out = np.empty((len(qkv), heads, value_width), np.float32)
    for row, slot, begins, copied_to in _rows(step):
        if begins:
            matrices[slot] = 0
        q = _unit(qkv[row, :keys].reshape(-1, key_width))[key_head] / np.sqrt(np.float32(key_width))
        k = _unit(qkv[row, keys : 2 * keys].reshape(-1, key_width))[key_head]
        v = qkv[row, 2 * keys :].reshape(heads, value_width)
        state = matrices[slot] * kept[row, :, :, None]
        change = (v - np.einsum("hkv,hk->hv", state, k)) * share[row, :, None]
        matrices[slot] = state + k[:, :, None] * change[:, None, :]
        out[row] = np.einsum("hkv,hk->hv", matrices[slot], q)
        for to in copied_to:
            matrices[to] = matrices[slot]
    return out.reshape(len(qkv), -1)


def selective_scan(
    step: StepArrays,
    xbc: FloatArray,
    dt: FloatArray,
    parameters: tuple[FloatArray, FloatArray, FloatArray],
    matrices: FloatArray,
    how: ScanHeads,
) -> FloatArray:
    """See `Ops.selective_scan`. `parameters`: decay_weight, decay_bias and skip. matrices: [slots, heads, key_width,
    value_width].
    """
    heads, key_width, value_width = matrices.shape[1:]
    decay_weight, decay_bias, skip = parameters
    group = (how.first + np.arange(heads)) // how.per_group
    inner = heads * value_width
    share = _softplus(dt + decay_bias)
    kept = np.exp(decay_weight * share)
    out = np.empty((len(xbc), heads, value_width), np.float32)
    for row, slot, begins, copied_to in _rows(step):
        if begins:
            matrices[slot] = 0
        x = xbc[row, :inner].reshape(heads, value_width)
        inputs, outputs = (part.reshape(-1, key_width)[group] for part in np.split(xbc[row, inner:], 2))
        entering = inputs[:, :, None] * (x * share[row, :, None])[:, None, :]
        matrices[slot] = matrices[slot] * kept[row, :, None, None] + entering
        out[row] = np.einsum("hkv,hk->hv", matrices[slot], outputs) + skip[:, None] * x
        for to in copied_to:
            matrices[to] = matrices[slot]
    return out.reshape(len(xbc), -1)


def _softplus(x: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.asarray(np.where(x > 20, x, np.log1p(np.exp(x))), np.float32)


def _unit(heads: FloatArray) -> FloatArray:
    return np.asarray(heads / np.sqrt(np.square(heads).sum(axis=-1, keepdims=True) + _NORM_EPSILON), np.float32)


def _rows(step: StepArrays) -> Iterator[tuple[int, int, bool, list[int]]]:
    """Each row of a step in turn: its number, the slot of its sequence, whether the sequence's state begins there from
    zeros, and the slots that get a copy of the state after it. ValueError where the step has no slots.
    """
    if step.state_slot is None or step.state_fresh is None:
        raise ValueError("the step names no slots of the state memory")
    copies = [] if step.state_copies is None else step.state_copies.tolist()
    for i, slot in enumerate(step.state_slot):
        first, past = int(step.query_start[i]), int(step.query_start[i + 1])
        for row in range(first, past):
            copied_to = [to for sequence, to, at in copies if (sequence, at) == (i, step.positions[row])]
            yield row, int(slot), bool(step.state_fresh[i]) and row == first, copied_to
