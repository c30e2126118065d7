"""Decoders with LayerNorm, which takes the mean away, most with an MLP without a gate: from GPT-2 to StarCoder2. One
table of parameters and one forward function, by what a `BlockStyle` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from homenode.compute.ops import FloatArray, Ops, PlainActivation, Tensor
from homenode.model.architectures import attention, mlp, stage, tables
from homenode.model.architectures.parameters import Condition, ForwardContext, Parameter, of_model
from homenode.model.architectures.stage import Layer
from homenode.model.architectures.tables import layer_bias, layer_weight
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.bounded_files import damaged
from homenode.model.formats.tensor_parts import runs_of
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec, TensorEntry
from homenode.units import format_count


@dataclass(frozen=True)
class BlockStyle:
    """What decoders with LayerNorm differ in; `ModelSpec.own` of each.

    `activation`: of an MLP without a gate; "silu_gate" is one with a gate, as Llama's. `residual`: in "serial" blocks
    the MLP reads what attention has been added to; in "parallel" ones it reads what the layer began with, through a
    norm of its own, and with "one_norm" through that of attention. `positions`: how tokens know of them: a "rope",
    whose pairs may be "neighbours", a "table" whose rows are added to the embedding, or "alibi" with slopes down to
    2^-alibi_bits times `alibi_scale`. `clip`: q, k and v are limited to -clip .. clip. `norm_biases`, `head_bias`,
    `embedding_norm`, `head_norms`: whether norms and the output matrix have biases, the embedding has a norm, and each
    head of q and k has one.
    """

    activation: PlainActivation | Literal["silu_gate"] = "gelu"
    residual: Literal["serial", "parallel", "one_norm"] = "serial"
    positions: Literal["rope", "neighbours", "table", "alibi"] = "rope"
    norm_biases: bool = True
    head_bias: bool = False
    embedding_norm: bool = False
    head_norms: bool = False
    clip: float | None = None
    alibi_bits: float = 8.0
    alibi_scale: float = 1.0


def style_of(spec: ModelSpec) -> BlockStyle:
    """The style of a decoder that has one."""
    assert isinstance(spec.own, BlockStyle)
    return spec.own


def has_norm_biases(spec: ModelSpec, _part: ModelPart, _layer: int | None) -> bool:
    """Norms have biases."""
    return style_of(spec).norm_biases


def _when_last(spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    return part.last_stage and style_of(spec).norm_biases


def _has_head_bias(spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    return part.last_stage and style_of(spec).head_bias


_has_post_norm = of_model(lambda spec: style_of(spec).residual != "one_norm")
_has_post_norm_bias = of_model(lambda spec: style_of(spec).residual != "one_norm" and style_of(spec).norm_biases)
_has_head_norms = of_model(lambda spec: style_of(spec).head_norms)
_has_gate = of_model(lambda spec: style_of(spec).activation == "silu_gate")


def _has_table(spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    return part.first_stage and style_of(spec).positions == "table"


def _has_embedding_norm(spec: ModelSpec, part: ModelPart, _layer: int | None) -> bool:
    return part.first_stage and style_of(spec).embedding_norm


NORM_BIAS = Parameter("norm_bias", "model.norm.bias", ("hidden",), "output_norm.bias", _when_last)
HEAD_BIAS = Parameter("head_bias", "lm_head.bias", ("vocabulary",), "output.bias", _has_head_bias)
INPUT_NORM_BIAS = layer_bias("input_norm_bias", "input_layernorm", "attn_norm", "hidden", when=has_norm_biases)


def post_norm(when: Condition, when_bias: Condition, gguf: str = "ffn_norm") -> tuple[Parameter, ...]:
    """The norm before the MLP, and its bias. `gguf`: what a GGUF file calls it."""
    return (
        layer_weight("post_norm", "post_attention_layernorm", gguf, "hidden", when=when),
        layer_bias("post_norm_bias", "post_attention_layernorm", gguf, "hidden", when=when_bias),
    )


PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    Parameter("positions", "model.positions.weight", ("positions", "hidden"), "position_embd.weight", _has_table),
    Parameter("embed_norm", "model.embed_norm.weight", ("hidden",), "token_embd_norm.weight", _has_embedding_norm),
    Parameter("embed_norm_bias", "model.embed_norm.bias", ("hidden",), "token_embd_norm.bias", _has_embedding_norm),
    NORM_BIAS,
    HEAD_BIAS,
    *tables.ATTENTION,
    INPUT_NORM_BIAS,
    *tables.QKV_BIASES,
    *tables.OUTPUT_BIAS,
    *(
        make(f"{part}_norm{ending}", f"self_attn.{part}_layernorm", f"attn_{part}_norm", "head", when=_has_head_norms)
        for part in "qk"
        for make, ending in ((layer_weight, ""), (layer_bias, "_bias"))
    ),
    *post_norm(_has_post_norm, _has_post_norm_bias),
    replace(tables.GATE_UP_DOWN[0], when=_has_gate),
    *tables.GATE_UP_DOWN[1:],
    *tables.MLP_BIASES[1:],
)


def normed(ops: Ops, model: ForwardContext, of: Layer, key: str, x: Tensor) -> Tensor:
    """x through the LayerNorm `key` of a layer, or of what is outside the layers."""
    return ops.layer_norm(x, of[key], of.get(f"{key}_bias"), model.spec.norm_eps)


def inner_columns(ops: Ops, layer: Layer, h: Tensor, style: BlockStyle) -> Tensor:
    """The inner columns of the MLP of a layer."""
    if style.activation == "silu_gate":
        return mlp.gated(ops, layer, h)
    return ops.activate(ops.linear(h, (layer["up"],), (layer.get("up_bias"),)), style.activation)


def slopes_of(heads: int, bits: float) -> FloatArray:
    """ALiBi's slope of each head (Press et al. 2021): of n heads, a power of two, 2^(-bits i / n) for i from 1 on; for
    another number those of the power below, then every second one of the power above.
    """
    power = 1 << (heads.bit_length() - 1)
    exponents = [*range(2, 2 * power + 1, 2), *range(1, 2 * (heads - power), 2)]
    return np.exp2(-np.array(exponents) * bits / (2 * power)).astype(np.float32)


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    style = style_of(model.spec)
    x = _enter(ops, model, style)
    rotation = attention.angles(ops, model.rope) if style.positions in ("rope", "neighbours") else None
    slopes = None
    if style.positions == "alibi":
        here = model.part.heads
        every = slopes_of(model.spec.num_heads, style.alibi_bits) * np.float32(style.alibi_scale)
        slopes = every[here.first : here.end]
    for index, layer in enumerate(model.parameters.layers):
        h = normed(ops, model, layer, "input_norm", x)
        qkv, turning = project(ops, model, layer, h), rotation
        if style.positions == "neighbours" and rotation is not None:
            qkv, turning = attention.rotated(ops, model, index, qkv, rotation, adjacent=True), None
        inner = stage.select_last(ops, model, index, attention.attended(ops, model, index, qkv, turning, slopes))
        x, h = (stage.select_last(ops, model, index, rows) for rows in (x, h))
        if style.residual == "serial":
            x = stage.project_out(ops, model, inner, layer["o"], layer.get("o_bias"), x)
            inner = inner_columns(ops, layer, normed(ops, model, layer, "post_norm", x), style)
            x = stage.project_out(ops, model, inner, layer["down"], layer.get("down_bias"), x)
        else:
            h = h if style.residual == "one_norm" else normed(ops, model, layer, "post_norm", x)
            x = add_parallel(ops, model, layer, x, inner, inner_columns(ops, layer, h, style))
    return leave(ops, model, x)


def _enter(ops: Ops, model: ForwardContext, style: BlockStyle) -> Tensor:
    x, top = stage.enter(ops, model), model.parameters.top
    if model.part.first_stage and style.positions == "table":
        x = ops.add(x, ops.position_rows(top["positions"]))
    return normed(ops, model, top, "embed_norm", x) if "embed_norm" in top else x


def project(ops: Ops, model: ForwardContext, layer: Layer, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of the heads that are here, not yet rotated: limited, or each head of q and k normed, where the model
    has that.
    """
    clip = style_of(model.spec).clip
    if clip is None:
        q, k, v = attention.project_qkv(ops, model, layer, h)
        if "q_norm" in layer:
            q, k = (normed(ops, model, layer, key, rows) for key, rows in (("q_norm", q), ("k_norm", k)))
        return q, k, v
    kv = model.part.kv_heads.count * model.spec.head_dim
    qkv = ops.clamp(ops.linear(h, (layer["q"], layer["k"], layer["v"])), clip)
    q, k, v = ops.split(qkv, (model.part.heads.count * model.spec.head_dim, kv, kv))
    return q, k, v


def add_parallel(ops: Ops, model: ForwardContext, layer: Layer, x: Tensor, attended: Tensor, inner: Tensor) -> Tensor:
    """x plus attention, projected, plus the MLP, `inner` being its inner columns: in that order, and added up over the
    ranks once.
    """
    adds = model.part.adds_residual
    biases = [layer.get(f"{key}_bias") if adds else None for key in ("o", "down")]
    part = ops.linear(attended, (layer["o"],), biases[:1], residual=x if adds else None)
    return stage.over_ranks(ops, model, ops.linear(inner, (layer["down"],), biases[1:], residual=part))


def leave(ops: Ops, model: ForwardContext, x: Tensor) -> Tensor:
    """As `stage.leave`, through a LayerNorm."""
    if not model.part.last_stage:
        return x
    return stage.logits_of(ops, model, normed(ops, model, model.parameters.top, "norm", x))


EPS_KEY = {"attention.layer_norm_epsilon": "attention.layer_norm_rms_epsilon"}  # what GGUF files of these have


def gguf_figures(config: GgufConfig, style: BlockStyle) -> ModelSpec:
    """The figures in a GGUF file of a decoder of this style but for biases, which its tensors tell."""
    config = config.respelled(EPS_KEY)
    spec = config.refuse_window(config.decoder())
    there = config.tensors.keys()
    return replace(spec, own=replace(style, norm_biases="model.norm.bias" in there, head_bias="lm_head.bias" in there))


def split_grouped_rows(tensors: Mapping[str, TensorEntry], spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder whose `self_attn.grouped_qkv` has for each KV head the rows of its query heads, its key
    and its value, as an entry for each of q, k and v. CheckpointError for one of another height.
    """
    found: dict[str, TensorEntry] = {}
    head, groups = spec.head_dim, spec.num_kv_heads
    queries = spec.num_heads // groups * head
    apart = queries + 2 * head
    for name, entry in tensors.items():
        front, fused, kind = name.partition(".grouped_qkv.")
        if not fused:
            found[name] = entry
            continue
        if not entry.shape or entry.shape[0] != groups * apart:
            wanted = f"{format_count(groups, 'group')} of {format_count(apart, 'row')}"
            raise damaged(entry.file, f"shape of tensor {entry.name}", seen=list(entry.shape), wanted=wanted)
        for part, first, run in (("q", 0, queries), ("k", queries, head), ("v", queries + head, head)):
            each = f"{front}.{part}_proj.{kind}"
            found[each] = runs_of(entry, each, first, groups * run, run, apart)
    return found
