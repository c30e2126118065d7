"""Gemma 2: every other layer sees a window only, scores and logits are capped, and each half of a layer is normed again
before it is added.

Folders hold the weights of norms less one; GGUF files hold them whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import Layer, layer_weight
from homenode.model.architectures.layer_kinds import all_but_each
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.config.folder_config import GELU, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec, TensorEntry

NAME = "gemma2"
DEFAULTS = Defaults(max_position=8192, head_dim=256, bos_id=2, eos_id=1)
ATTENTION_SOFTCAP, LOGITS_SOFTCAP = 50.0, 30.0
PATTERN = 2  # each layer of that number sees its whole context, the others a window
LARGE = 46  # layers of the largest model, whose scores are scaled by another length than a head's
FIELDS = frozenset(
    "hidden_activation sliding_window sliding_window_pattern _sliding_window_pattern query_pre_attn_scalar "
    "attn_logit_softcapping final_logit_softcapping use_bidirectional_attention attention_bias".split()
)
HARMLESS = {"hidden_act": "the class reads hidden_activation"}
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    layer_weight("attended_norm", "post_attention_layernorm", "post_attention_norm", "hidden"),
    layer_weight("post_norm", "pre_feedforward_layernorm", "ffn_norm", "hidden"),
    *common.GATE_UP_DOWN,
    layer_weight("mlp_norm", "post_feedforward_layernorm", "post_ffw_norm", "hidden"),
)


def decoder(config: FolderConfig, name: str, defaults: Defaults, pattern: int) -> ModelSpec:
    """The figures in config.json that Gemmas have in common."""
    fields = config.fields
    config.refuse_activation("hidden_activation", GELU)
    spec = config.decoder(name, defaults)

    def patterned(layers: int) -> tuple[bool, ...]:
        each = fields.optional_integer("sliding_window_pattern") or fields.integer("_sliding_window_pattern", pattern)
        return all_but_each(layers, each)

    bias = fields.boolean("attention_bias", False)
    spec = config.with_window_in(spec, config.window(default=4096), patterned)
    return replace(
        spec,
        attention_bias=bias,
        output_bias=bias,
        embedding_scale=math.sqrt(spec.hidden_size),
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
    )


def softcap(config: FolderConfig, key: str, default: float | None) -> float | None:
    """The cap that config.json names; None where it says null, or nothing and there is none by default."""
    return config.fields.optional_number(key) if config.fields.has(key) or config.fields.is_null(key) else default


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_later_context("use_bidirectional_attention", False)
    spec = decoder(config, NAME, DEFAULTS, PATTERN)
    attention = softcap(config, "attn_logit_softcapping", ATTENTION_SOFTCAP)
    logits = softcap(config, "final_logit_softcapping", LOGITS_SOFTCAP)
    return replace(spec, attention_softcap=attention, logits_softcap=logits)


def norms_plus_one(tensors: Mapping[str, TensorEntry], _spec: ModelSpec) -> dict[str, TensorEntry]:
    """The tensors of a folder, to the norms' weights of which one is added."""
    return {n: replace(entry, plus=1.0) if n.endswith("norm.weight") else entry for n, entry in tensors.items()}


def gguf_decoder(config: GgufConfig, name: str, *, theta: float, pattern: int, large: int) -> ModelSpec:
    """The figures in a GGUF file that Gemmas have in common. What it leaves out is what the reference reader
    supposes.
    """
    spec = config.decoder(name, theta=theta)
    window, sliding = config.window(default=4096), all_but_each(spec.num_layers, pattern)
    length = spec.hidden_size / spec.num_heads if spec.num_layers == large else spec.head_dim
    return replace(
        spec,
        sliding_window=window if any(sliding) else None,
        sliding_layers=sliding if window and any(sliding) else (),
        embedding_scale=math.sqrt(spec.hidden_size),
        attention_scale=length**-0.5,
    )


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return replace(
        gguf_decoder(config, NAME, theta=DEFAULTS.theta, pattern=PATTERN, large=LARGE),
        attention_softcap=config.fields.optional_number("attn_logit_softcapping", least=0.0) or ATTENTION_SOFTCAP,
        logits_softcap=config.fields.optional_number("final_logit_softcapping", least=0.0) or LOGITS_SOFTCAP,
    )


def layer_of(
    ops: Ops, model: ForwardContext, index: int, x: Tensor, qkv: tuple[Tensor, Tensor, Tensor], rotation: Tensor
) -> Tensor:
    """x after layer `index` of this stage, of which q, k and v are there, not yet rotated; of the model's last layer
    the selected rows only.
    """
    layer = model.parameters.layers[index]
    inner = common.select_last(ops, model, index, common.attended(ops, model, index, qkv, rotation))
    out = common.project_out(ops, model, inner, layer["o"], None, None)
    x = ops.add(common.select_last(ops, model, index, x), common.normed(ops, model, out, layer["attended_norm"]))
    h = common.normed(ops, model, x, layer["post_norm"])
    inner = gated(ops, layer, h)
    out = common.project_out(ops, model, inner, layer["down"], None, None)
    return ops.add(x, common.normed(ops, model, out, layer["mlp_norm"]))


def gated(ops: Ops, layer: Layer, h: Tensor) -> Tensor:
    """gelu(gate(h)) * up(h), the inner columns of an MLP."""
    return ops.gelu_mul(ops.linear(h, (layer["gate"], layer["up"])))


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        qkv = common.project_qkv(ops, model, layer, common.normed(ops, model, x, layer["input_norm"]))
        x = layer_of(ops, model, index, x, qkv, rotation)
    return common.leave(ops, model, x)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat("Gemma2ForCausalLM", read_folder, fields=FIELDS, harmless=HARMLESS, convert=norms_plus_one),
    GgufFormat("gemma2", read_gguf, keys=frozenset(("attn_logit_softcapping", "final_logit_softcapping"))),
    PARAMETERS,
    forward,
)
