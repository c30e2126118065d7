"""Qwen 3 MoE: Qwen 3's block with a mixture of experts; some layers may have an MLP instead."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common, qwen3
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.qwen2 import window_of
from homenode.model.architectures.qwen2_moe import EXPERT_FIELDS, ROUTER, read_experts
from homenode.model.config.folder_config import Defaults, ExpertDefaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.spec import ModelSpec

NAME = "qwen3_moe"
DEFAULTS = Defaults(max_position=32768)
EXPERTS = ExpertDefaults(experts=128, experts_per_token=8, size=768)
PARAMETERS = (*qwen3.PARAMETERS, *common.EXPERTS)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    window = window_of(config)
    config.refuse_other_layers(window)
    spec = config.decoder(NAME, DEFAULTS)
    bias = config.fields.boolean("attention_bias", False) and config.fields.boolean("qkv_bias", True)
    moe = read_experts(config, EXPERTS, spec.num_layers)
    return replace(spec, attention_bias=bias, output_bias=bias, sliding_window=window, moe=moe)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    spec = config.decoder(NAME)
    config.refuse_window(spec)
    return replace(spec, moe=config.moe(spec, ROUTER))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Qwen3MoeForCausalLM",
        read_folder,
        fields=EXPERT_FIELDS
        | {"hidden_act", "attention_bias", "qkv_bias", "num_local_experts", "sliding_window", "use_sliding_window"},
        harmless={
            "max_window_layers": NOT_READ,
            "shared_expert_intermediate_size": "it has no shared expert",
        },
    ),
    GgufFormat("qwen3moe", read_gguf),
    PARAMETERS,
    qwen3.forward,
)
