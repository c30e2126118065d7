"""Mistral: Llama's block whose attention may be limited to a sliding window. GGUF files call it llama, too: a window
tells the two apart.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import llama
from homenode.model.config.folder_config import Defaults
from homenode.model.config.known_fields import NOT_READ

DEFAULTS = Defaults(max_position=131072, bos_id=1, eos_id=2)


ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "mistral",
    "MistralForCausalLM",
    read=lambda config: config.uniform_decoder(DEFAULTS, window=config.window(default=4096)),
    fields=DEFAULTS.fields | {"sliding_window"},
    harmless=dict.fromkeys(("attention_bias", "use_sliding_window", "max_window_layers"), NOT_READ),
    picture_classes=("LlavaMistralForCausalLM",),
    gguf=llama.gguf_format(
        "llama",
        lambda config: replace(config.decoder(whole_heads=True), sliding_window=config.window()),
        accepts=lambda fields: not llama.has_no_window(fields),
    ),
)
