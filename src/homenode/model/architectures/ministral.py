"""Ministral 8B (2410): Mistral's block with a window in all layers or in those that are named."""

from __future__ import annotations

from homenode.model.architectures import mistral
from homenode.model.config.folder_config import FolderConfig
from homenode.model.spec import ModelSpec


def _read_folder(config: FolderConfig) -> ModelSpec:
    spec = config.decoder(mistral.DEFAULTS)
    return config.with_window_in(spec, config.window(default=4096), lambda layers: (True,) * layers)


ARCHITECTURE = mistral.ARCHITECTURE.of_class(
    "ministral", "MinistralForCausalLM", read=_read_folder, harmless=mistral.ARCHITECTURE.folder.harmless
)
