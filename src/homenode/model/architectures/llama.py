"""Llama 2 and 3: pre-norm blocks, grouped-query attention with rotary embedding, a SiLU-gated MLP."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec

NAME = "llama"
DEFAULTS = Defaults(max_position=2048, bos_id=1, eos_id=2)
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.QKV_BIASES,
    *common.OUTPUT_BIAS,
    *common.GATED_MLP,
    *common.MLP_BIASES,
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    return read_folder_as(config, NAME, DEFAULTS)


def read_folder_as(config: FolderConfig, name: str, defaults: Defaults) -> ModelSpec:
    """The figures in config.json of an architecture with these layers."""
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    bias, mlp_bias = config.fields.boolean("attention_bias", False), config.fields.boolean("mlp_bias", False)
    return replace(config.decoder(name, defaults), attention_bias=bias, output_bias=bias, mlp_bias=mlp_bias)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return config.decoder(NAME, whole_heads=True)


def has_no_window(fields: Fields) -> bool:
    """Whether a GGUF file is of a model without a sliding window."""
    return not fields.optional_integer("attention.sliding_window", minimum=0)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "LlamaForCausalLM",
        read_folder,
        fields=frozenset(("hidden_act", "attention_bias", "mlp_bias")),
        harmless=dict.fromkeys(("sliding_window", "use_sliding_window", "max_window_layers"), NOT_READ),
        older_classes=("IQuestCoderForCausalLM", "XverseForCausalLM"),
    ),
    GgufFormat("llama", read_gguf, accepts=has_no_window, convert=common.interleaved_heads, further_names=("xverse",)),
    PARAMETERS,
    forward,
)
