"""Decoders with LayerNorm, which takes the mean away, most with an MLP without a gate: from GPT-2 to StarCoder2. One
table of parameters and one forward function, by what a `BlockStyle` says.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from homenode.compute.ops import FloatArray, Ops, PlainActivation, Tensor
from homenode.model.architectures import attention, mlp, stage, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext, Parameter, of_model
from homenode.model.architectures.stage import Layer
from homenode.model.architectures.tables import layer_bias, layer_weight
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats import limits
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec


@dataclass(frozen=True)
class BlockStyle:
    """The differences of decoders with LayerNorm; `ModelSpec.own` of each.

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
    return spec.own_as(BlockStyle)


_has_norm_biases = of_model(lambda spec: style_of(spec).norm_biases)


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


WITHOUT_MLP = (
    *tables.EMBEDDING_AND_HEAD,
    Parameter("positions", "model.positions.weight", ("positions", "hidden"), "position_embd.weight", _has_table),
    Parameter("embed_norm", "model.embed_norm.weight", ("hidden",), "token_embd_norm.weight", _has_embedding_norm),
    Parameter("embed_norm_bias", "model.embed_norm.bias", ("hidden",), "token_embd_norm.bias", _has_embedding_norm),
    Parameter("norm_bias", "model.norm.bias", ("hidden",), "output_norm.bias", _when_last),
    Parameter("head_bias", "lm_head.bias", ("vocabulary",), "output.bias", _has_head_bias),
    *tables.ATTENTION,
    layer_bias("input_norm_bias", "input_layernorm", "attn_norm", "hidden", when=_has_norm_biases),
    *tables.QKV_BIASES,
    *tables.OUTPUT_BIAS,
    *(
        make(f"{part}_norm{ending}", f"self_attn.{part}_layernorm", f"attn_{part}_norm", "head", when=_has_head_norms)
        for part in "qk"
        for make, ending in ((layer_weight, ""), (layer_bias, "_bias"))
    ),
    layer_weight("post_norm", "post_attention_layernorm", "ffn_norm", "hidden", when=_has_post_norm),
    layer_bias("post_norm_bias", "post_attention_layernorm", "ffn_norm", "hidden", when=_has_post_norm_bias),
)
PARAMETERS = (
    *WITHOUT_MLP,
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
        qkv, turning = project(ops, model, index, h), rotation
        if style.positions == "neighbours" and rotation is not None:
            qkv, turning = attention.rotated(ops, model, index, qkv, rotation, adjacent=True), None
        inner = stage.select_last(ops, model, index, attention.attended(ops, model, index, qkv, turning, slopes))
        x, h = (stage.select_last(ops, model, index, rows) for rows in (x, h))
        if style.residual == "serial":
            x = stage.project_out(ops, model, inner, layer["o"], layer.get("o_bias"), x)
            x = _feed_forward(ops, model, index, x, style)
        else:
            h = h if style.residual == "one_norm" else normed(ops, model, layer, "post_norm", x)
            x = add_parallel(ops, model, layer, x, inner, inner_columns(ops, layer, h, style))
    return leave(ops, model, x)


def _feed_forward(ops: Ops, model: ForwardContext, index: int, x: Tensor, style: BlockStyle) -> Tensor:
    """x plus an MLP, or experts, of x, which is normed before."""
    layer = model.parameters.layers[index]
    h = normed(ops, model, layer, "post_norm", x)
    if "router" in layer:
        return mlp.mixture(ops, model, index, h, x)
    inner = inner_columns(ops, layer, h, style)
    return stage.project_out(ops, model, inner, layer["down"], layer.get("down_bias"), x)


def _enter(ops: Ops, model: ForwardContext, style: BlockStyle) -> Tensor:
    x, top = stage.enter(ops, model), model.parameters.top
    if model.part.first_stage and style.positions == "table":
        x = ops.add(x, ops.position_rows(top["positions"]))
    return normed(ops, model, top, "embed_norm", x) if "embed_norm" in top else x


def project(ops: Ops, model: ForwardContext, index: int, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v of the heads that are here, not yet rotated: limited, or each head of q and k normed, where the model
    has that.
    """
    layer, clip = model.parameters.layers[index], style_of(model.spec).clip
    q, k, v = attention.project_qkv(ops, model, index, h)
    if clip is not None:
        q, k, v = (ops.clamp(rows, clip) for rows in (q, k, v))
    if "q_norm" in layer:
        q, k = (normed(ops, model, layer, key, rows) for key, rows in (("q_norm", q), ("k_norm", k)))
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
    """Leave as `stage.leave`, through a LayerNorm."""
    if not model.part.last_stage:
        return x
    return stage.logits_of(ops, model, normed(ops, model, model.parameters.top, "norm", x))


EPS_KEY = {"attention.layer_norm_epsilon": "attention.layer_norm_rms_epsilon"}  # what GGUF files of these have


def folder_figures(
    config: FolderConfig,
    defaults: Defaults,
    style: BlockStyle,
    activation: tuple[str, str] | None = None,
    *,
    bias: bool | None = None,
    inner: str = "",
    **how: Any,
) -> ModelSpec:
    """The figures in config.json of a decoder of this style. `activation`: the field that names the MLP's, and what it
    is where that says nothing; `bias`: whether all matrices have one, None: as `defaults` tell; `inner`: the field with
    the inner columns of the MLP, which are four times the hidden size where it says nothing; `how`: as for
    `FolderConfig.uniform_decoder`.
    """
    spec = config.uniform_decoder(defaults, **how)
    if activation is not None:
        style = replace(style, activation=config.plain_activation(*activation))
    if bias is not None:
        spec = replace(spec, attention_bias=bias, output_bias=bias, mlp_bias=bias)
    if inner:
        columns = config.fields.integer(inner, 4 * spec.hidden_size, maximum=limits.MOST_INTERMEDIATE)
        spec = replace(spec, intermediate_size=columns)
    rows = {"positions": spec.max_position} if style.positions == "table" else {}
    return replace(spec, dimensions=rows, own=style)


def gguf_figures(config: GgufConfig, style: BlockStyle) -> ModelSpec:
    """The figures in a GGUF file of a decoder of this style but for biases, which its tensors tell."""
    config = config.respelled(EPS_KEY)
    spec = config.uniform_decoder()
    there = config.tensors.keys()
    return replace(spec, own=replace(style, norm_biases="model.norm.bias" in there, head_bias="lm_head.bias" in there))


def layer_norm_family(name: str, folder: FolderFormat, gguf: GgufFormat) -> Architecture:
    """The architecture of this name of such decoders."""
    return Architecture(name, folder, gguf, PARAMETERS, forward)
