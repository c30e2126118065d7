"""Helium (Kyutai): Llama's block, whose rope turns neighbours."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import ernie4_5, llama
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.spec import ModelSpec

NAME = "helium"
DEFAULTS = Defaults(
    max_position=4096, heads=20, kv_heads=20, head_dim=128, vocab=48000, bos_id=1, eos_id=2, norm_eps=1e-8, theta=1e5,
    intermediate=7040,
)  # fmt: skip


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    return replace(llama.read_folder_as(config, NAME, DEFAULTS), output_bias=False)


ARCHITECTURE = replace(
    llama.ARCHITECTURE,
    name=NAME,
    folder=llama.ARCHITECTURE.folder.of_class("HeliumForCausalLM", read=read_folder, harmless={}),
    gguf=llama.ARCHITECTURE.gguf.without_files(NAME),
    forward=ernie4_5.forward,
)
