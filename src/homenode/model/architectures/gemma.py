"""Gemma (1): Llama's block with embeddings scaled by sqrt(hidden size) and a gate of gelu.

Folders hold the weights of norms less one; GGUF files hold them whole.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common, gemma2
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.pre_norm import forward_with
from homenode.model.config.folder_config import GELU, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "gemma"
DEFAULTS = Defaults(max_position=8192, heads=16, kv_heads=16, vocab=256000, head_dim=256, bos_id=2, eos_id=1)
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.QKV_BIASES,
    *common.OUTPUT_BIAS,
    *common.GATED_MLP,
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json. `gelu` is what the first releases called gelu by way of tanh."""
    if config.fields.text("hidden_act", GELU) != "gelu":
        config.refuse_activation("hidden_act", GELU)
    config.refuse_later_context("use_bidirectional_attention", False)
    config.refuse_other_layers(window=None)
    bias = config.fields.boolean("attention_bias", False)
    spec = config.decoder(NAME, DEFAULTS)
    return replace(spec, attention_bias=bias, output_bias=bias, embedding_scale=math.sqrt(spec.hidden_size))


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.refuse_window(config.decoder(NAME))
    return replace(spec, embedding_scale=math.sqrt(spec.hidden_size))


def feed_forward(ops: Ops, model: ForwardContext, index: int, x: Tensor) -> Tensor:
    """x plus an MLP whose gate is one of gelu."""
    layer = model.parameters.layers[index]
    inner = gemma2.gated(ops, layer, common.normed(ops, model, x, layer["post_norm"]))
    return common.project_out(ops, model, inner, layer["down"], None, x)


forward = forward_with(feed_forward=feed_forward)
ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "GemmaForCausalLM",
        read_folder,
        fields=frozenset("hidden_act use_bidirectional_attention attention_bias".split()),
        harmless={"hidden_activation": "the class reads hidden_act"},
        convert=gemma2.norms_plus_one,
    ),
    GgufFormat("gemma", read_gguf),
    PARAMETERS,
    forward,
)
