"""Gemma 2: every other layer sees a window only, scores and logits are capped, and each half of a layer is normed again
before it is added.

Folders hold the weights of norms less one; GGUF files hold them whole.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.compute.ops import Ops, Precision, Tensor
from homenode.model.architectures import conversions, mlp, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import all_but_each
from homenode.model.architectures.pre_norm import forward_with
from homenode.model.architectures.stage import Layer
from homenode.model.config.folder_config import GELU, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(max_position=8192, head_dim=256, bos_id=2, eos_id=1, activation=None, attention_bias=False)
ATTENTION_SOFTCAP, LOGITS_SOFTCAP = 50.0, 30.0
PATTERN = 2  # each layer of that number sees its whole context, the others a window
LARGE = 46  # layers of the largest model, whose scores are scaled by another length than a head's
FIELDS = frozenset(
    "hidden_activation sliding_window sliding_window_pattern _sliding_window_pattern query_pre_attn_scalar "
    "attn_logit_softcapping final_logit_softcapping use_bidirectional_attention attention_bias".split()
)
HARMLESS = {"hidden_act": "the class reads hidden_activation"}
PARAMETERS = (
    *tables.EMBEDDING_AND_HEAD,
    *tables.ATTENTION,
    *tables.NORMS_BEHIND,
    tables.NORM_BETWEEN,
    *tables.GATE_UP_DOWN,
)


def decoder(config: FolderConfig, defaults: Defaults, pattern: int) -> ModelSpec:
    """The figures in config.json that Gemmas have in common."""
    fields = config.fields
    config.refuse_activation("hidden_activation", GELU)
    spec = config.decoder(defaults)

    def patterned(layers: int) -> tuple[bool, ...]:
        each = fields.optional_integer("sliding_window_pattern") or fields.integer("_sliding_window_pattern", pattern)
        return all_but_each(layers, each)

    spec = config.with_window_in(spec, config.window(default=4096), patterned)
    return replace(
        spec,
        embedding_scale=math.sqrt(spec.hidden_size),
        attention_scale=fields.number("query_pre_attn_scalar", 256) ** -0.5,
    )


def softcap(config: FolderConfig, key: str, default: float | None) -> float | None:
    """The cap that config.json names; None where it says null, or nothing and there is none by default."""
    return config.fields.optional_number(key) if config.fields.has(key) or config.fields.is_null(key) else default


def _read_folder(config: FolderConfig) -> ModelSpec:
    config.refuse_later_context("use_bidirectional_attention", False)
    spec = decoder(config, DEFAULTS, PATTERN)
    attention = softcap(config, "attn_logit_softcapping", ATTENTION_SOFTCAP)
    logits = softcap(config, "final_logit_softcapping", LOGITS_SOFTCAP)
    return replace(spec, attention_softcap=attention, logits_softcap=logits)


def gguf_decoder(config: GgufConfig, *, theta: float, pattern: int, large: int) -> ModelSpec:
    """The figures in a GGUF file that Gemmas have in common. What it leaves out is what the reference reader
    supposes.
    """
    spec = config.decoder(theta=theta)
    window, sliding = config.window(default=4096), all_but_each(spec.num_layers, pattern)
    length = spec.hidden_size / spec.num_heads if spec.num_layers == large else spec.head_dim
    return replace(
        spec,
        sliding_window=window if any(sliding) else None,
        sliding_layers=sliding if window and any(sliding) else (),
        embedding_scale=math.sqrt(spec.hidden_size),
        attention_scale=length**-0.5,
    )


def _read_gguf(config: GgufConfig) -> ModelSpec:
    return replace(
        gguf_decoder(config, theta=DEFAULTS.theta, pattern=PATTERN, large=LARGE),
        attention_softcap=config.fields.optional_number("attn_logit_softcapping", least=0.0) or ATTENTION_SOFTCAP,
        logits_softcap=config.fields.optional_number("final_logit_softcapping", least=0.0) or LOGITS_SOFTCAP,
    )


def gated(ops: Ops, layer: Layer, h: Tensor, precision: Precision = "usual") -> Tensor:
    """gelu(gate(h)) * up(h), the inner columns of an MLP."""
    return ops.gelu_mul(ops.linear(h, (layer["gate"], layer["up"]), precision=precision))


forward = forward_with(feed_forward=mlp.feed_forward_with(gated))
ARCHITECTURE = Architecture(
    "gemma2",
    FolderFormat(
        "Gemma2ForCausalLM", _read_folder, fields=FIELDS, harmless=HARMLESS, convert=conversions.norms_plus_one
    ),
    GgufFormat("gemma2", _read_gguf, keys=frozenset(("attn_logit_softcapping", "final_logit_softcapping"))),
    PARAMETERS,
    forward,
)
