"""Blocks of towers, on `Ops`: norms, attention both ways over all patches of a picture, and an MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from homenode.compute.ops import AttentionMask, KvCache, Ops, ScoreRule, Tensor

Layer = Mapping[str, Any]


@dataclass(frozen=True)
class BlockForm:
    """The figures of a tower's blocks. `gated`: the MLP has a gate, whose activation it is then. `adjacent`: neighbours
    turn together. `kv_heads`: 0: as many as `heads`. `mask`: which rows of its sequence each sees (see
    `compute.ops.ScoreRule`).
    """

    heads: int
    head_dim: int
    eps: float = 1e-6
    norm: Literal["layer", "rms"] = "layer"
    activation: str = "gelu"  # one of `ACTIVATIONS`
    gated: bool = False
    adjacent: bool = False
    scale: float | None = None
    kv_heads: int = 0
    mask: AttentionMask = "all"

    @property
    def columns(self) -> int:
        """Columns of all heads together."""
        return self.heads * self.head_dim

    @property
    def kv_columns(self) -> int:
        """Columns of the keys of all heads together."""
        return (self.kv_heads or self.heads) * self.head_dim


def normed(ops: Ops, form: BlockForm, x: Tensor, of: Layer, key: str) -> Tensor:
    """x through the norm `key`."""
    if form.norm == "rms":
        return ops.rms_norm(x, of[key], form.eps)
    return ops.layer_norm(x, of[key], of.get(f"{key}_bias"), form.eps)


def product(ops: Ops, x: Tensor, of: Layer, key: str, residual: Tensor | None = None) -> Tensor:
    """x times the matrix `key`, its bias included."""
    return ops.linear(x, (of[key],), (of.get(f"{key}_bias"),), residual=residual, precision="fine")


def activated(ops: Ops, x: Tensor, activation: str) -> Tensor:
    """The activation of x, by its name here or in a config."""
    if activation == "quick_gelu":  # x * sigmoid(1.702 x)
        return ops.sigmoid_mul(x, ops.scale(x, 1.702))
    return ops.activate(x, activation)  # type: ignore[arg-type]


def attention(ops: Ops, form: BlockForm, h: Tensor, layer: Layer, cache: KvCache, angles: Tensor | None) -> Tensor:
    """Return what each patch sees of its sequence, not projected, of normed rows `h`."""
    if "qkv" in layer:
        qkv = product(ops, h, layer, "qkv")
    else:
        biases = tuple(layer.get(f"{key}_bias") for key in "qkv")
        qkv = ops.linear(h, (layer["q"], layer["k"], layer["v"]), biases, precision="fine")
    q, k, v = ops.split(qkv, (form.columns, form.kv_columns, form.kv_columns))
    if "q_norm" in layer:
        q, k = (ops.rms_norm(each, layer[key], form.eps) for each, key in ((q, "q_norm"), (k, "k_norm")))
    if angles is not None:
        q, k = (ops.rope(each, angles, form.head_dim, form.adjacent) for each in (q, k))
    scale = form.head_dim**-0.5 if form.scale is None else form.scale
    return ops.attention(q, k, v, cache, 0, ScoreRule(scale, mask=form.mask))


def block(ops: Ops, form: BlockForm, x: Tensor, layer: Layer, cache: KvCache, angles: Tensor | None = None) -> Tensor:
    """x through one block: what attention finds is added, then what the MLP makes."""
    x = added(ops, x, attention(ops, form, normed(ops, form, x, layer, "norm1"), layer, cache, angles), layer, "o")
    return added(ops, x, inner(ops, form, normed(ops, form, x, layer, "norm2"), layer), layer, "down")


def added(ops: Ops, x: Tensor, found: Tensor, layer: Layer, key: str) -> Tensor:
    """x plus the product of `found` with the matrix `key`, whose columns may have a scale each."""
    if (scale := layer.get(f"{key}_scale")) is None:
        return product(ops, found, layer, key, residual=x)
    return ops.add(x, ops.multiply(product(ops, found, layer, key), scale))


def inner(ops: Ops, form: BlockForm, h: Tensor, layer: Layer) -> Tensor:
    """The inner columns of a block's MLP."""
    if not form.gated:
        return activated(ops, product(ops, h, layer, "up"), form.activation)
    biases = (layer.get("gate_bias"), layer.get("up_bias"))
    gate_up = ops.linear(h, (layer["gate"], layer["up"]), biases, precision="fine")
    if form.activation == "silu":
        return ops.silu_mul(gate_up)
    return ops.gelu_mul(gate_up, form="gelu_erf" if form.activation == "gelu_erf" else "gelu")


ACTIVATIONS: Mapping[str, str] = {  # by the names in config.json
    "gelu": "gelu_erf",
    "gelu_pytorch_tanh": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}
