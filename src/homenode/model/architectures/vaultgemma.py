"""VaultGemma: Gemma 2 without the norms behind attention and MLP, which leaves Gemma's block."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import gemma, gemma2
from homenode.model.config.folder_config import FolderConfig
from homenode.model.spec import ModelSpec

NAME = "vaultgemma"
_LAYER = "model.layers.{layer}."


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    return replace(gemma2.read_folder(config), architecture=NAME)


_LIKE = gemma2.ARCHITECTURE
ARCHITECTURE = replace(
    _LIKE,
    name=NAME,
    folder=_LIKE.folder.of_class(
        "VaultGemmaForCausalLM",
        read=read_folder,
        modules={_LAYER + "pre_feedforward_layernorm": _LAYER + "post_attention_layernorm"},
    ),
    gguf=_LIKE.gguf.without_files(NAME),
    parameters=gemma.PARAMETERS,
    forward=gemma.forward,
)
