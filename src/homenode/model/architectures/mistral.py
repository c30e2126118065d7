"""Mistral: Llama's block whose attention may be limited to a sliding window. GGUF files call it llama, too: a window
tells the two apart.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.llama import PARAMETERS
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec

NAME = "mistral"
DEFAULTS = Defaults(max_position=131072, bos_id=1, eos_id=2)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    config.refuse_activation("hidden_act", "silu")
    window = config.window(default=4096)
    config.refuse_other_layers(window)
    return replace(config.decoder(NAME, DEFAULTS), sliding_window=window)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file."""
    return replace(config.decoder(NAME, whole_heads=True), sliding_window=config.window())


def _has_window(fields: Fields) -> bool:
    return bool(fields.optional_integer("attention.sliding_window", minimum=0))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "MistralForCausalLM",
        read_folder,
        fields=frozenset(("hidden_act", "sliding_window")),
        harmless=dict.fromkeys(("attention_bias", "use_sliding_window", "max_window_layers"), NOT_READ),
        picture_classes=("Mistral3ForConditionalGeneration", "LlavaForConditionalGeneration"),
    ),
    GgufFormat("llama", read_gguf, accepts=_has_window, convert=common.interleaved_heads),
    PARAMETERS,
    forward,
)
