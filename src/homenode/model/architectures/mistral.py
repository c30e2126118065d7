"""Mistral: Llama's block whose attention may be limited to a sliding window. GGUF files call it llama, too: a window
tells the two apart.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import conversions
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.llama import PARAMETERS
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats.fields import Fields

DEFAULTS = Defaults(max_position=131072, bos_id=1, eos_id=2)


def _has_window(fields: Fields) -> bool:
    return bool(fields.optional_integer("attention.sliding_window", minimum=0))


ARCHITECTURE = Architecture(
    "mistral",
    FolderFormat(
        "MistralForCausalLM",
        lambda config: config.uniform_decoder(DEFAULTS, window=config.window(default=4096)),
        fields=DEFAULTS.fields | {"sliding_window"},
        harmless=dict.fromkeys(("attention_bias", "use_sliding_window", "max_window_layers"), NOT_READ),
        picture_classes=("LlavaMistralForCausalLM",),
    ),
    GgufFormat(
        "llama",
        lambda config: replace(config.decoder(whole_heads=True), sliding_window=config.window()),
        accepts=_has_window,
        convert=conversions.interleaved_heads,
    ),
    PARAMETERS,
    forward,
)
