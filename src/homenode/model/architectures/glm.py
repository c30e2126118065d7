"""GLM-4 of 2024 (9B chat): Llama's block with biases of q, k and v, and a rope that turns neighbours in a part of each
head. Its files hold gate and up in one matrix.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward_with, project_neighbours
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fused_rows import split_fused_rows
from homenode.model.spec import ModelSpec

NAME = "glm"
DEFAULTS = Defaults(
    max_position=131072,
    heads=32,
    kv_heads=2,
    head_dim=128,
    vocab=151552,
    eos_id=151329,
    norm_eps=1.5625e-7,
    intermediate=13696,
    rotary_share=0.5,
)
PARAMETERS = (*common.EMBEDDING_AND_HEAD, *common.ATTENTION, *common.QKV_BIASES, *common.GATED_MLP)
GGUF_NAMES = {"blk.{layer}.ffn_up.weight": "model.layers.{layer}.mlp.gate_up_proj.weight"}


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    return decoder(config, NAME)


def decoder(config: FolderConfig, name: str) -> ModelSpec:
    """The figures in config.json of an architecture with this attention."""
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    bias = config.fields.boolean("attention_bias", True)
    return replace(config.decoder(name, DEFAULTS, rotates_part=True), attention_bias=bias)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return gguf_decoder(config, NAME)


def gguf_decoder(config: GgufConfig, name: str) -> ModelSpec:
    """The figures in a GGUF file of an architecture with this attention."""
    return config.refuse_window(config.decoder(name))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "GlmForCausalLM",
        read_folder,
        fields=frozenset(("hidden_act", "attention_bias")),
        convert=split_fused_rows,
    ),
    GgufFormat("chatglm", read_gguf, names=GGUF_NAMES, convert=split_fused_rows),
    PARAMETERS,
    forward_with(project_neighbours),
)
