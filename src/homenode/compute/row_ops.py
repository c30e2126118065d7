"""Operations that make each row of their result from the same row of their inputs: names, shapes and what they compute.

They are written here once for arrays of NumPy and torch. The native core has the same calls in
`csrc/recorder/row_operations.h`; that names and arguments are the same is checked where types are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from homenode.compute.activations import PLAIN, PlainActivation, gated, halves
from homenode.compute.arrays import (
    are_largest,
    exponential,
    hyperbolic_tangent,
    join,
    largest,
    mean,
    root,
    soft_plus,
)

Tensor = Any  # as in `homenode.compute.ops`


class RowOps(Protocol):
    """The part of `Ops` that needs nothing but rows."""

    def split(self, x: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
        """Column views of x of these widths; nothing is copied."""
        parts, begin = [], 0
        for width in widths:
            parts.append(x[:, begin : begin + width])
            begin += width
        return tuple(parts)

    def join_heads(self, x: Tensor, y: Tensor, heads: int) -> Tensor:
        """x and y cut into `heads` heads each, the columns of each head of x followed by those of the same head of y:
        [rows, x.columns + y.columns].
        """
        left, right = (each.reshape(len(each), heads, -1) for each in (x, y))
        return join(left, right, axis=2).reshape(len(x), -1)

    def regroup(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """The columns of x, which are groups of parts of these widths, as all first parts, all second parts and so
        on, each in the order of the groups.
        """
        groups, parts, begin = x.reshape(len(x), -1, sum(widths)), [], 0
        for width in widths:
            parts.append(groups[:, :, begin : begin + width].reshape(len(x), -1))
            begin += width
        return join(*parts, axis=1)

    def clamp(self, x: Tensor, limit: float) -> Tensor:
        """x, values below -limit and above limit being these; limit is above 0."""
        return x.clip(-limit, limit)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """x + y, of equal shapes; or y is a parameter that is a vector, which is added to every row."""
        return x + y

    def multiply(self, x: Tensor, y: Tensor) -> Tensor:
        """x * y, of equal shapes; or y is a parameter that is a vector, by which every row is multiplied."""
        return x * y

    def scale(self, x: Tensor, factor: float | Tensor) -> Tensor:
        """x * factor: a number, or a parameter that is a vector of one."""
        return x * (float(factor) if isinstance(factor, float) else factor)

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        """x * sigmoid(gate), of equal shapes."""
        return x / (1 + exponential(-gate))

    def gate_runs(self, x: Tensor, gate: Tensor, softplus: bool = False) -> Tensor:
        """x * sigmoid(gate), or x * ln(1 + e^gate), each column of gate for a run of equally many columns of x."""
        factors = soft_plus(gate) if softplus else 1 / (1 + exponential(-gate))
        return (x.reshape(len(x), gate.shape[1], -1) * factors[:, :, None]).reshape(x.shape)

    def add_gated(self, x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
        """x + sigmoid(gate) * y, gate being [rows, 1]."""
        return x + y / (1 + exponential(-gate))

    def gate_by_largest(self, x: Tensor, logits: Tensor) -> Tensor:
        """x * sigmoid(the largest of the row's logits)."""
        return x / (1 + exponential(-largest(logits, 1)))

    def add_weighted(self, x: Tensor, y: Tensor, weights: Tensor | None, width: int, offset: float = 0.0) -> Tensor:
        """Each run of `width` columns of x plus the sum over the runs of y of (offset + weight) * the run. A row of
        weights has one for each pair of runs, those of one run of x beside each other: [rows, runs of x * runs of y];
        None: all are 0.
        """
        out, runs = x.reshape(len(x), -1, width), y.reshape(len(y), -1, width)
        factors = None if weights is None else weights.reshape(len(x), out.shape[1], -1, 1) + offset
        for index in range(runs.shape[1]):
            out = out + (offset if factors is None else factors[:, :, index]) * runs[:, index : index + 1]
        return out.reshape(x.shape)

    def identity_weight(self, logits: Tensor, bias: Tensor, first: int, chosen: int, scale: float) -> Tensor:
        """The weight that a row itself has among its experts, [rows, 1]: of the `chosen` ones whose softmax of the
        logits plus `bias` is largest, of equals the lowest, those from number `first` on return the row. The sum of
        their softmax, times scale.
        """
        scores = exponential(logits - largest(logits, 1))
        scores = scores / (mean(scores, 1) * scores.shape[1])
        weights = (scores * are_largest(scores + bias, chosen))[:, first:]
        return mean(weights, 1) * (weights.shape[1] * scale)

    def match_magnitude(self, x: Tensor, y: Tensor, floor: float) -> Tensor:
        """Each run of x that is as long as y, made as large as that: x * sqrt(mean(y^2) / max(mean(x^2), floor))."""
        runs = x.reshape(len(x), -1, y.shape[1])
        there = mean(runs * runs, 2).clip(floor, None)
        wanted = mean(y * y, 1)[:, :, None]
        return (runs * (root(wanted) / root(there))).reshape(x.shape)

    def relu_above(self, x: Tensor, deviations: float) -> Tensor:
        """max(x - mean - deviations * deviation, 0), with the mean and the standard deviation of the row's columns,
        whose squares are divided by their number.
        """
        rest = x - mean(x, 1)
        return (rest - deviations * root(mean(rest * rest, 1))).clip(0, None)

    def silu_mul(self, gate_up: Tensor, up: Tensor | None = None) -> Tensor:
        """silu(left half of the columns) * right half. With `up`, as wide as `gate_up`: silu(all columns) * up."""
        return gated(*halves(gate_up, up), "silu")

    def gelu_mul(self, gate_up: Tensor, up: Tensor | None = None, form: Literal["gelu", "gelu_erf"] = "gelu") -> Tensor:
        """gelu(left half of the columns) * right half, gelu by way of tanh: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715
        x^3))), or with "gelu_erf" exact: 0.5 x (1 + erf(x / sqrt(2))). With `up`, as wide as `gate_up`: gelu(all
        columns) * up.
        """
        return gated(*halves(gate_up, up), form)

    def clamped_mul(self, gate_up: Tensor) -> Tensor:
        """The "clamped" activation of the left half of the columns as the gate and the right half as up."""
        return gated(*halves(gate_up), "clamped")

    def limited_mul(self, gate_up: Tensor) -> Tensor:
        """The same of the "limited" one."""
        return gated(*halves(gate_up), "limited")

    def activate(self, x: Tensor, activation: PlainActivation) -> Tensor:
        """The activation of every value of x."""
        return PLAIN[activation](x)

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap), cap being above 0."""
        return cap * hyperbolic_tangent(x / cap)
