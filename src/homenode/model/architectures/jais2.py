"""Jais 2: LayerNorm, biases everywhere, and an MLP of squared relu without a gate."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import PARAMETERS, BlockStyle, forward, gguf_figures
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "jais2"
DEFAULTS = Defaults(
    max_position=8192, heads=26, vocab=150272, bos_id=0, eos_id=150024, norm_eps=1e-5, intermediate=26624
)
STYLE = BlockStyle("relu2")


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config = config.respelled({"layer_norm_eps": "rms_norm_eps"})
    config.refuse_other_layers(window=None)
    bias = config.fields.boolean("attention_bias", True)
    return replace(
        config.decoder(NAME, DEFAULTS),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=config.fields.boolean("mlp_bias", True),
        own=replace(STYLE, activation=config.plain_activation("hidden_act", "relu2")),
    )


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return gguf_figures(config, NAME, STYLE)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "Jais2ForCausalLM",
        read_folder,
        fields=frozenset("hidden_act layer_norm_eps attention_bias mlp_bias".split()),
    ),
    GgufFormat("jais2", read_gguf),
    PARAMETERS,
    forward,
)
