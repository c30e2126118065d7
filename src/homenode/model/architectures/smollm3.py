"""SmolLM3: Llama's block, without rope in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from homenode.model.architectures import common, llama
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.layer_kinds import ROPE_FIELDS, all_but_each, rotated_layers, window_in_use
from homenode.model.architectures.pre_norm import forward
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.spec import ModelSpec

NAME = "smollm3"
DEFAULTS = Defaults(max_position=32768, heads=16, kv_heads=4, vocab=128256, bos_id=128000, eos_id=128001, theta=2e6)


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")
    spec = config.decoder(NAME, DEFAULTS)
    rotated = rotated_layers(fields, spec.num_layers)
    # Where layers are listed, they have a window whether it is said to be used or not.
    window = config.window(default=None) if fields.texts("layer_types") else window_in_use(config)
    if window is None:
        config.refuse_other_layers(window)
    spec = config.with_window_in(spec, window, lambda _layers: tuple(not each for each in rotated))
    bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    return replace(spec, attention_bias=bias, output_bias=bias, mlp_bias=mlp_bias, rope_layers=rotated)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, which does not say which layers have rope."""
    spec = config.refuse_window(config.decoder(NAME, whole_heads=True))
    return replace(spec, rope_layers=all_but_each(spec.num_layers))


ARCHITECTURE = Architecture(
    NAME,
    FolderFormat(
        "SmolLM3ForCausalLM",
        read_folder,
        fields=ROPE_FIELDS | {"hidden_act", "attention_bias", "mlp_bias", "sliding_window", "use_sliding_window"},
        harmless={"max_window_layers": NOT_READ},
    ),
    GgufFormat("smollm3", read_gguf, convert=common.interleaved_heads),
    llama.PARAMETERS,
    forward,
)
