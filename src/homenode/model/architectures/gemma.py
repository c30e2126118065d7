"""Gemma (1): Llama's block with embeddings scaled by sqrt(hidden size) and a gate of gelu.

Folders hold the weights of norms less one; GGUF files hold them whole.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.model.architectures import conversions, gemma2, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.config.folder_config import GELU, Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=8192, heads=16, kv_heads=16, vocab=256000, head_dim=256, bos_id=2, eos_id=1, activation=None,
    attention_bias=False,
)  # fmt: skip
PARAMETERS = (*tables.EMBEDDING_AND_HEAD, *tables.ATTENTION_AND_BIASES, *tables.GATED_MLP)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json. `gelu` is what the first releases called gelu by way of tanh."""
    if config.fields.text("hidden_act", GELU) != "gelu":
        config.refuse_activation("hidden_act", GELU)
    config.refuse_later_context("use_bidirectional_attention", False)
    spec = config.uniform_decoder(DEFAULTS)
    return replace(spec, embedding_scale=math.sqrt(spec.hidden_size))


def _read_gguf(config: GgufConfig) -> ModelSpec:
    spec = config.uniform_decoder()
    return replace(spec, embedding_scale=math.sqrt(spec.hidden_size))


ARCHITECTURE = Architecture(
    "gemma",
    FolderFormat(
        "GemmaForCausalLM",
        read_folder,
        fields=DEFAULTS.fields | {"hidden_act", "use_bidirectional_attention"},
        harmless={"hidden_activation": "the class reads hidden_act"},
        convert=conversions.norms_plus_one,
    ),
    GgufFormat("gemma", _read_gguf),
    PARAMETERS,
    gemma2.forward,
)
