"""What MLPs make of gate and up, in NumPy: see `Ops.silu_mul`, `Ops.gelu_mul`, `Ops.activate` and
`Experts.activation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from homenode.compute.ops import Activation, FloatArray

_erf = np.vectorize(math.erf, otypes=[np.float32])
CLAMP, SLOPE = np.float32(7.0), np.float32(1.702)  # of the clamped gate
LIMIT = np.float32(10.0)  # of the limited one


def sigmoid(x: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)), element by element."""
    with np.errstate(over="ignore"):  # exp of a very negative x is infinite, and the quotient then rightly zero
        return np.asarray(1 / (1 + np.exp(-x)), np.float32)


def silu_gated(gate: FloatArray, up: FloatArray) -> FloatArray:
    """silu(gate) * up."""
    with np.errstate(over="ignore"):
        return np.asarray(gate / (1 + np.exp(-gate)) * up, np.float32)


def gelu_gated(gate: FloatArray, up: FloatArray) -> FloatArray:
    """gelu(gate) * up, gelu by way of tanh."""
    inner = np.float32(math.sqrt(2 / math.pi)) * (gate + np.float32(0.044715) * gate**3)
    return np.asarray(np.float32(0.5) * gate * (1 + np.tanh(inner)) * up, np.float32)


def gelu_erf_gated(gate: FloatArray, up: FloatArray) -> FloatArray:
    """gelu(gate) * up, gelu by the normal distribution itself."""
    return np.asarray(np.float32(0.5) * gate * (1 + _erf(gate * np.float32(math.sqrt(0.5)))) * up, np.float32)


def relu2_gated(gate: FloatArray, up: FloatArray) -> FloatArray:
    """max(gate, 0)^2 * up."""
    return np.asarray(np.square(np.maximum(gate, np.float32(0))) * up, np.float32)


def exp_rest_gated(gate: FloatArray, up: FloatArray) -> FloatArray:
    """(e^m - 1 - m) * up with m = min(gate, 0)."""
    negative = np.minimum(gate, np.float32(0))
    return np.asarray((np.expm1(negative) - negative) * up, np.float32)


def clamped_gated(gate: FloatArray, up: FloatArray) -> FloatArray:
    """g * sigmoid(1.702 g) * (u + 1): the gate limited from above, up on both sides."""
    g, u = np.minimum(gate, CLAMP), np.clip(up, -CLAMP, CLAMP)
    return np.asarray(g * sigmoid(SLOPE * g) * (u + np.float32(1)), np.float32)


def limited_gated(gate: FloatArray, up: FloatArray) -> FloatArray:
    """silu(gate) * up, the gate limited from above, up on both sides."""
    return silu_gated(np.minimum(gate, LIMIT), np.clip(up, -LIMIT, LIMIT))


GATES: dict[Activation, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "silu": silu_gated,
    "gelu": gelu_gated,
    "gelu_erf": gelu_erf_gated,
    "relu2": relu2_gated,
    "exp_rest": exp_rest_gated,
    "clamped": clamped_gated,
    "limited": limited_gated,
}


def activated(x: FloatArray, activation: Activation) -> FloatArray:
    """The activation of x, of an MLP without a gate."""
    return GATES[activation](x, np.float32(1))  # type: ignore[arg-type]
