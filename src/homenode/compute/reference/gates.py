"""What gated MLPs make of gate and up, in NumPy: see `Ops.silu_mul`, `Ops.gelu_mul` and `Experts.activation`."""

from __future__ import annotations

import math

import numpy as np

from homenode.compute.ops import FloatArray

CLAMP, SLOPE = np.float32(7.0), np.float32(1.702)  # of the clamped gate


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


def clamped_gated(gate: FloatArray, up: FloatArray) -> FloatArray:
    """g * sigmoid(1.702 g) * (u + 1): the gate limited from above, up on both sides."""
    g, u = np.minimum(gate, CLAMP), np.clip(up, -CLAMP, CLAMP)
    return np.asarray(g * sigmoid(SLOPE * g) * (u + np.float32(1)), np.float32)


GATES = {"silu": silu_gated, "gelu": gelu_gated, "clamped": clamped_gated}
