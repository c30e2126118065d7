"""Nemotron 4 and Minitron: LayerNorm whose weights folders hold less one, and an MLP of squared relu without a gate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_norm_decoder import PARAMETERS, BlockStyle, forward, gguf_figures
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec, TensorEntry

NAME = "nemotron"
DEFAULTS = Defaults(
    max_position=4096,
    heads=48,
    vocab=256000,
    bos_id=2,
    eos_id=3,
    norm_eps=1e-5,
    intermediate=24576,
    rotary_share=0.5,
)
STYLE = BlockStyle("relu2")


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config = config.respelled({"norm_eps": "rms_norm_eps"})
    config.refuse_other_layers(window=None)
    bias = config.fields.boolean("attention_bias", False)
    return replace(
        config.decoder(NAME, DEFAULTS, rotates_part=True),
        attention_bias=bias,
        output_bias=bias,
        mlp_bias=config.fields.boolean("mlp_bias", False),
        own=replace(STYLE, activation=config.plain_activation("hidden_act", "relu2")),
    )


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return gguf_figures(config, NAME, STYLE)


def _norms_plus_one(tensors: Mapping[str, TensorEntry], _spec: ModelSpec) -> dict[str, TensorEntry]:
    return {n: replace(entry, plus=1.0) if n.endswith("norm.weight") else entry for n, entry in tensors.items()}


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "NemotronForCausalLM",
        read_folder,
        fields=frozenset("hidden_act norm_eps attention_bias mlp_bias".split()),
        convert=_norms_plus_one,
    ),
    GgufFormat("nemotron", read_gguf),
    PARAMETERS,
    forward,
)
