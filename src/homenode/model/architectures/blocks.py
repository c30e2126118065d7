"""Pieces most decoders share, as functions on `Ops` and as lines of a parameter table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures.parameters import ForwardContext, Parameter
from homenode.model.architectures.rope import Rope

Layer = Mapping[str, Any]

EMBEDDING_AND_HEAD = (
    Parameter("embed", "model.embed_tokens.weight", ("vocabulary", "hidden"), when="embedding"),
    Parameter("norm", "model.norm.weight", ("hidden",), when="output"),
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
GATE_UP_DOWN = (
    Parameter("gate", "model.layers.{layer}.mlp.gate_proj.weight", ("intermediate", "hidden"), when="dense"),
    Parameter("up", "model.layers.{layer}.mlp.up_proj.weight", ("intermediate", "hidden"), when="dense"),
    Parameter("down", "model.layers.{layer}.mlp.down_proj.weight", ("hidden", "intermediate"), when="dense"),
)
GATED_MLP = (*POST_NORM, *GATE_UP_DOWN)
MLP_BIASES = (
    Parameter("gate_bias", "model.layers.{layer}.mlp.gate_proj.bias", ("intermediate",), when="mlp_bias"),
    Parameter("up_bias", "model.layers.{layer}.mlp.up_proj.bias", ("intermediate",), when="mlp_bias"),
    Parameter("down_bias", "model.layers.{layer}.mlp.down_proj.bias", ("hidden",), when="mlp_bias"),
)


def enter(ops: Ops, model: ForwardContext) -> Tensor:
    """The rows that the first of this stage's layers begins with: from the embedding table, or from the stage before."""
    part = model.part
    if not part.first_stage:
        return ops.received(model.spec.hidden_size)
    table = model.parameters.top["embed"]
    if part.ranks == 1:
        return ops.embedding(table)
    return ops.sum(ops.embedding(table, part.vocabulary.first, model.spec.vocab_size))


def angles(ops: Ops, rope: Rope) -> Tensor:
    """cos and sin of the step's positions, used by every layer with this rope."""
    return ops.rope_angles(rope.inverse_frequencies, rope.scale)


def project_qkv(ops: Ops, model: ForwardContext, layer: Layer, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normed x through the three projections: q [tokens, query], k and v [tokens, kv] of the heads that are here, not yet rotated."""
    spec, part = model.spec, model.part
    h = ops.rms_norm(x, layer["input_norm"], spec.rms_norm_eps)
    biases = (layer.get("q_bias"), layer.get("k_bias"), layer.get("v_bias"))
    qkv = ops.linear(h, (layer["q"], layer["k"], layer["v"]), biases)
    kv = part.kv_heads.count * spec.head_dim
    q, k, v = ops.split(qkv, (part.heads.count * spec.head_dim, kv, kv))
    return q, k, v


def attend(
    ops: Ops, model: ForwardContext, index: int, x: Tensor, qkv: tuple[Tensor, Tensor, Tensor], rotation: Tensor
) -> Tensor:
    """x plus the attention of layer `index` of this stage, projected; of the model's last layer the selected rows only."""
    layer = model.parameters.layers[index]
    inner = select_last(ops, model, index, attended(ops, model, index, qkv, rotation))
    if model.part.leads:
        x = select_last(ops, model, index, x)
    return project_out(ops, model, inner, layer["o"], layer.get("o_bias"), x)


def select_last(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """Behind the attention of the model's last layer the rows that the step samples: nothing reads the others any more. Elsewhere all of x."""
    return ops.select(x) if model.part.layers.first + index == model.spec.num_layers - 1 else x


def attended(
    ops: Ops, model: ForwardContext, index: int, qkv: tuple[Tensor, Tensor, Tensor], rotation: Tensor
) -> Tensor:
    """What layer `index` of this stage attends to: rotate q and k, attend over the cache, within the layer's window, if any."""
    spec = model.spec
    q, k, v = qkv
    q = ops.rope(q, rotation, spec.head_dim)
    k = ops.rope(k, rotation, spec.head_dim)
    scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
    return ops.attention(q, k, v, model.cache, index, scale, window(model, index), spec.attention_softcap)


def gated_mlp(ops: Ops, model: ForwardContext, layer: Layer, x: Tensor) -> Tensor:
    """x plus down(silu(gate(h)) * up(h)), h being normed x."""
    h = ops.rms_norm(x, layer["post_norm"], model.spec.rms_norm_eps)
    gate_up = ops.linear(h, (layer["gate"], layer["up"]), (layer.get("gate_bias"), layer.get("up_bias")))
    return project_out(ops, model, ops.silu_mul(gate_up), layer["down"], layer.get("down_bias"), x)


def project_out(ops: Ops, model: ForwardContext, inner: Tensor, weight: Any, bias: Tensor | None, x: Tensor) -> Tensor:
    """x plus the product of the inner columns, bias included; ranks add up those of the columns they have."""
    if not model.part.leads:
        bias = x = None
    return over_ranks(ops, model, ops.linear(inner, (weight,), (bias,), residual=x))


def over_ranks(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    """x added up over the ranks, of which there may be only one."""
    return x if model.part.ranks == 1 else ops.sum(x)


def leave(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    """What the stage returns: its rows for the next one, or logits [sampled rows, vocabulary], x being those that `select_last` left.

    A tied model multiplies with its embedding table.
    """
    part, top = model.part, model.parameters.top
    if not part.last_stage:
        return x
    h = ops.rms_norm(x, top["norm"], model.spec.rms_norm_eps)
    head = top["embed"] if model.spec.tie_word_embeddings else top["lm_head"]
    logits = ops.linear(h, (head,))
    if part.ranks > 1:
        logits = ops.gather(logits, part.vocabulary_widths)
    return logits if model.spec.logits_softcap is None else ops.soft_cap(logits, model.spec.logits_softcap)


def window(model: ForwardContext, index: int) -> int | None:
    """The sliding window of a layer of this stage, None where it sees its whole context."""
    spec = model.spec
    sliding = not spec.sliding_layers or spec.sliding_layers[model.part.layers.first + index]
    return spec.sliding_window if sliding else None
