"""Youtu-LLM: latent attention as DeepSeek V3 has it, with an MLP in every layer."""

from __future__ import annotations

from homenode.model.architectures import deepseek_v3, latent_attention, tables
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.config.folder_config import Defaults

DEFAULTS = Defaults(max_position=131072, heads=16, vocab=128256, bos_id=128000, eos_id=128001, intermediate=6144)
PARAMETERS = (*tables.EMBEDDING_AND_HEAD, *latent_attention.PARAMETERS, *tables.GATED_MLP)


ARCHITECTURE = Architecture(
    "youtu",
    FolderFormat(
        "YoutuForCausalLM",
        lambda config: latent_attention.read_folder(config, DEFAULTS, deepseek_v3.HEADS),
        fields=latent_attention.FIELDS,
        harmless={"embedding_initializer_range": "of training only"},
        picture_classes=("YoutuVLForConditionalGeneration",),
        convert=latent_attention.split_folder_heads,
    ),
    latent_attention.gguf_format("deepseek2", latent_attention.read_gguf),
    PARAMETERS,
    latent_attention.forward,
)
