"""Functions between the products of an MLP, by name, of arrays of NumPy and torch.

The native core has the formulas in `csrc/kernels/simd/elements.h`, by the names in `csrc/kernels/activation.h`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal

from homenode.compute.arrays import Array, exponential, normal_distribution

# Of one value.
PlainActivation = Literal["silu", "gelu", "gelu_erf", "relu", "relu2", "exp_rest"]
# Of a gate and what it is multiplied with.
PairActivation = Literal["clamped", "limited"]


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return 1 / (1 + exponential(-x))


def silu(x: Array) -> Array:
    """x * sigmoid(x)."""
    return x / (1 + exponential(-x))


def gelu(x: Array) -> Array:
    """0.5 x (1 + tanh(u)), u = sqrt(2 / pi) (x + 0.044715 x^3), which is x * sigmoid(2 u)."""
    return x / (1 + exponential(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def gelu_erf(x: Array) -> Array:
    """x * Phi(x), the normal distribution."""
    return x * normal_distribution(x)


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return x.clip(0, None)


def relu2(x: Array) -> Array:
    """max(x, 0)^2."""
    positive = x.clip(0, None)
    return positive * positive


def exp_rest(x: Array) -> Array:
    """e^m - 1 - m with m = min(x, 0), which is 0 above 0."""
    negative = x.clip(None, 0)
    return exponential(negative) - 1 - negative


def clamped(gate: Array, up: Array) -> Array:
    """g * sigmoid(1.702 g) * (u + 1): the gate limited to 7 from above, up to -7 .. 7."""
    g, u = gate.clip(None, 7.0), up.clip(-7.0, 7.0)
    return g / (1 + exponential(-1.702 * g)) * (u + 1)


def limited(gate: Array, up: Array) -> Array:
    """silu(g) * u: the gate limited to 10 from above, up to -10 .. 10."""
    return silu(gate.clip(None, 10.0)) * up.clip(-10.0, 10.0)


# By `PlainActivation` and `PairActivation`.
PLAIN: Mapping[str, Callable[[Array], Array]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_erf": gelu_erf,
    "relu": relu,
    "relu2": relu2,
    "exp_rest": exp_rest,
}
PAIRS: Mapping[str, Callable[[Array, Array], Array]] = {"clamped": clamped, "limited": limited}


def gated(gate: Array, up: Array, activation: PlainActivation | PairActivation) -> Array:
    """A plain activation of the gate times up, or one of both."""
    pair = PAIRS.get(activation)
    return PLAIN[activation](gate) * up if pair is None else pair(gate, up)


def halves(gate_up: Array, up: Array | None = None) -> tuple[Array, Array]:
    """The left and the right half of the columns; or both arrays where there are two."""
    half = gate_up.shape[1] // 2
    return (gate_up[:, :half], gate_up[:, half:]) if up is None else (gate_up, up)
