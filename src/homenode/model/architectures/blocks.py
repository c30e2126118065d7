"""Pieces most decoders share, as functions on `Ops` and as lines of a parameter table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures.parameters import Forward, Parameter

Layer = Mapping[str, Any]

EMBEDDING_AND_HEAD = (
    Parameter("embed", "model.embed_tokens.weight", ("vocabulary", "hidden")),
    Parameter("norm", "model.norm.weight", ("hidden",)),
    Parameter("lm_head", "lm_head.weight", ("vocabulary", "hidden"), when="untied"),
)
ATTENTION = (
    Parameter("input_norm", "model.layers.{layer}.input_layernorm.weight", ("hidden",)),
    Parameter("q", "model.layers.{layer}.self_attn.q_proj.weight", ("query", "hidden")),
    Parameter("k", "model.layers.{layer}.self_attn.k_proj.weight", ("kv", "hidden")),
    Parameter("v", "model.layers.{layer}.self_attn.v_proj.weight", ("kv", "hidden")),
    Parameter("o", "model.layers.{layer}.self_attn.o_proj.weight", ("hidden", "query")),
)
QKV_BIASES = (
    Parameter("q_bias", "model.layers.{layer}.self_attn.q_proj.bias", ("query",), when="attention_bias"),
    Parameter("k_bias", "model.layers.{layer}.self_attn.k_proj.bias", ("kv",), when="attention_bias"),
    Parameter("v_bias", "model.layers.{layer}.self_attn.v_proj.bias", ("kv",), when="attention_bias"),
)
OUTPUT_BIAS = (Parameter("o_bias", "model.layers.{layer}.self_attn.o_proj.bias", ("hidden",), when="output_bias"),)
POST_NORM = (Parameter("post_norm", "model.layers.{layer}.post_attention_layernorm.weight", ("hidden",)),)
GATED_MLP = (
    *POST_NORM,
    Parameter("gate", "model.layers.{layer}.mlp.gate_proj.weight", ("intermediate", "hidden"), when="dense"),
    Parameter("up", "model.layers.{layer}.mlp.up_proj.weight", ("intermediate", "hidden"), when="dense"),
    Parameter("down", "model.layers.{layer}.mlp.down_proj.weight", ("hidden", "intermediate"), when="dense"),
)
MLP_BIASES = (
    Parameter("gate_bias", "model.layers.{layer}.mlp.gate_proj.bias", ("intermediate",), when="mlp_bias"),
    Parameter("up_bias", "model.layers.{layer}.mlp.up_proj.bias", ("intermediate",), when="mlp_bias"),
    Parameter("down_bias", "model.layers.{layer}.mlp.down_proj.bias", ("hidden",), when="mlp_bias"),
)


def angles(ops: Ops, model: Forward) -> Tensor:
    """cos and sin of the step's positions, used by every layer."""
    return ops.rope_angles(model.rope.inverse_frequencies, model.rope.scale)


def project_qkv(ops: Ops, model: Forward, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normed x through the three projections: q [tokens, query], k and v [tokens, kv], not yet rotated."""
    spec = model.spec
    h = ops.rms_norm(x, layer["input_norm"], spec.rms_norm_eps)
    biases = (layer.get("q_bias"), layer.get("k_bias"), layer.get("v_bias"))
    qkv = ops.linear(h, (layer["q"], layer["k"], layer["v"]), biases)
    kv = spec.num_kv_heads * spec.head_dim
    q, k, v = ops.split(qkv, (spec.num_heads * spec.head_dim, kv, kv))
    return q, k, v


def attend(ops: Ops, model: Forward, index: int, x: Tensor, qkv: tuple[Tensor, Tensor, Tensor], rotation: Tensor) -> Tensor:
    """x plus the attention of layer `index`: rotate q and k, attend over the cache (within the layer's window, if any), project."""
    spec, layer = model.spec, model.parameters.layers[index]
    q, k, v = qkv
    q = ops.rope(q, rotation, spec.head_dim)
    k = ops.rope(k, rotation, spec.head_dim)
    attended = ops.attention(q, k, v, model.cache, index, spec.head_dim**-0.5, _window(model, index))
    return ops.linear(attended, (layer["o"],), (layer.get("o_bias"),), residual=x)


def gated_mlp(ops: Ops, model: Forward, layer: Layer, x: Tensor) -> Tensor:
    """x plus down(silu(gate(h)) * up(h)), h being normed x."""
    h = ops.rms_norm(x, layer["post_norm"], model.spec.rms_norm_eps)
    gate_up = ops.linear(h, (layer["gate"], layer["up"]), (layer.get("gate_bias"), layer.get("up_bias")))
    return ops.linear(ops.silu_mul(gate_up), (layer["down"],), (layer.get("down_bias"),), residual=x)


def lm_head(ops: Ops, model: Forward, x: Tensor) -> Tensor:
    """Logits [sampled rows, vocabulary] of the rows the step wants; a tied model multiplies with its embedding table."""
    top = model.parameters.top
    h = ops.rms_norm(ops.select(x), top["norm"], model.spec.rms_norm_eps)
    head = top["embed"] if model.spec.tie_word_embeddings else top["lm_head"]
    return ops.linear(h, (head,))


def _window(model: Forward, index: int) -> int | None:
    """The sliding window of a layer, None where it sees its whole context."""
    spec = model.spec
    sliding = not spec.sliding_layers or spec.sliding_layers[index]
    return spec.sliding_window if sliding else None
