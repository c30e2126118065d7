"""ERNIE 4.5 (dense): Llama's block, whose rope turns neighbours."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import llama
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.pre_norm import forward_with, project_neighbours
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "ernie4_5"
DEFAULTS = Defaults(
    max_position=131072, heads=16, kv_heads=2, head_dim=128, vocab=103424, bos_id=1, eos_id=2, norm_eps=1e-5, theta=5e5
)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    config.refuse_other_layers(window=None)
    bias = config.fields.boolean("use_bias", False)
    return replace(config.decoder(NAME, DEFAULTS), attention_bias=bias, output_bias=bias, mlp_bias=bias)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return config.refuse_window(config.decoder(NAME))


forward = forward_with(project_neighbours)
ARCHITECTURE = Architecture(
    NAME,
    FolderFormat("Ernie4_5ForCausalLM", read_folder, fields=frozenset(("hidden_act", "use_bias"))),
    GgufFormat("ernie4_5", read_gguf),
    llama.PARAMETERS,
    forward,
)
