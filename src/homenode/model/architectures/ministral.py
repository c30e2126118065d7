"""Ministral 8B (2410): Mistral's block with a window in all layers or in those that are named."""

from __future__ import annotations

from homenode.model.architectures import llama, mistral
from homenode.model.architectures.architecture import Architecture, FolderFormat
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.spec import ModelSpec

NAME = "ministral"


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    spec = config.decoder(NAME, mistral.DEFAULTS)
    return config.with_window_in(spec, config.window(default=4096), lambda layers: (True,) * layers)


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "MinistralForCausalLM",
        read_folder,
        fields=frozenset(("hidden_act", "sliding_window")),
        harmless=dict.fromkeys(("attention_bias", "use_sliding_window", "max_window_layers"), NOT_READ),
    ),
    mistral.ARCHITECTURE.gguf.without_files(NAME),
    llama.PARAMETERS,
    forward,
)
