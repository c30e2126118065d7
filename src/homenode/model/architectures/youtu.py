"""Youtu-LLM: latent attention as DeepSeek V3 has it, with an MLP in every layer."""

from __future__ import annotations

from homenode.model.architectures import common, deepseek_v3, latent_attention
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.spec import ModelSpec

NAME = "youtu"
DEFAULTS = Defaults(max_position=131072, heads=16, vocab=128256, bos_id=128000, eos_id=128001, intermediate=6144)
PARAMETERS = (*common.EMBEDDING_AND_HEAD, *latent_attention.PARAMETERS, *common.GATED_MLP)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    return latent_attention.read_folder(config, NAME, DEFAULTS, deepseek_v3.HEADS)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return latent_attention.read_gguf(config, NAME)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "YoutuForCausalLM",
        read_folder,
        fields=latent_attention.FIELDS,
        harmless={"embedding_initializer_range": "of training only"},
        convert=latent_attention.split_folder_heads,
    ),
    deepseek_v3.gguf_format("deepseek2", read_gguf),
    PARAMETERS,
    latent_attention.forward,
)
