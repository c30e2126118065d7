"""SmolLM3: Llama's block, without rope in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import llama
from homenode.model.architectures.layer_kinds import ROPE_FIELDS, all_but_each, rotated_layers, window_in_use
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.spec import ModelSpec

DEFAULTS = Defaults(
    max_position=32768, heads=16, kv_heads=4, vocab=128256, bos_id=128000, eos_id=128001, theta=2e6,
    attention_bias=False, mlp_bias=False,
)  # fmt: skip


def _read_folder(config: FolderConfig) -> ModelSpec:
    fields = config.fields
    spec = config.decoder(DEFAULTS)
    rotated = rotated_layers(fields, spec.num_layers)
    # Where layers are listed, they have a window whether it is said to be used or not.
    window = config.window(default=None) if fields.texts("layer_types") else window_in_use(config)
    if window is None:
        config.refuse_other_layers(window)
    spec = config.with_window_in(spec, window, lambda _layers: tuple(not each for each in rotated))
    return replace(spec, rope_layers=rotated)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, which does not say which layers have rope."""
    spec = llama.read_gguf(config)
    return replace(spec, rope_layers=all_but_each(spec.num_layers))


ARCHITECTURE = llama.ARCHITECTURE.of_class(
    "smollm3",
    "SmolLM3ForCausalLM",
    read=_read_folder,
    fields=DEFAULTS.fields | ROPE_FIELDS | {"sliding_window", "use_sliding_window"},
    harmless={"max_window_layers": NOT_READ},
    gguf=llama.gguf_format("smollm3", read_gguf),
)
