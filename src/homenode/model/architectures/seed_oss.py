"""Seed-OSS: Llama's block with biases of q, k and v."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.common import layer_weight
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "seed_oss"
DEFAULTS = Defaults(
    max_position=524288, heads=80, kv_heads=8, head_dim=128, vocab=155136, bos_id=0, eos_id=2, intermediate=27648
)
PARAMETERS = (
    *common.EMBEDDING_AND_HEAD,
    *common.ATTENTION,
    *common.QKV_BIASES,
    *common.OUTPUT_BIAS,
    layer_weight("post_norm", "post_attention_layernorm", "post_attention_norm", "hidden"),
    *common.GATE_UP_DOWN,
    *common.MLP_BIASES,
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    return replace(
        config.decoder(NAME, DEFAULTS),
        attention_bias=fields.boolean("attention_bias", True),
        output_bias=fields.boolean("attention_out_bias", False),
        mlp_bias=fields.boolean("mlp_bias", False),
    )


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return config.refuse_window(config.decoder(NAME))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "SeedOssForCausalLM",
        read_folder,
        fields=frozenset(("hidden_act", "attention_bias", "attention_out_bias", "mlp_bias")),
        harmless={"residual_dropout": "of training only"},
    ),
    GgufFormat("seed_oss", read_gguf),
    PARAMETERS,
    forward,
)
