"""SmolLM3: Llama's block, without rope in every fourth layer."""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import Ops, Tensor
from homenode.model.architectures import common, llama
from homenode.model.architectures.architecture import Architecture, FolderFormat, GgufFormat
from homenode.model.architectures.parameters import ForwardContext
from homenode.model.architectures.qwen2 import window_of
from homenode.model.config.folder_config import Defaults, FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.config.known_fields import NOT_READ
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec
from homenode.units import format_count

NAME = "smollm3"
DEFAULTS = Defaults(max_position=32768, heads=16, kv_heads=4, vocab=128256, bos_id=128000, eos_id=128001, theta=2e6)
INTERVAL = 4  # each layer of that number has no rope
ROPE_FIELDS = frozenset(("no_rope_layers", "no_rope_layer_interval"))


def all_but_each(layers: int, interval: int = INTERVAL) -> tuple[bool, ...]:
    """Of each layer whether it is not one of each `interval`-th."""
    return tuple((layer + 1) % interval != 0 for layer in range(layers))


def rotated_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Which layers have rope by `no_rope_layers`, where 1 means that one has it, or else by the interval."""
    interval = fields.integer("no_rope_layer_interval", INTERVAL)
    listed = fields.integers("no_rope_layers")
    if not listed:
        return all_but_each(layers, interval)
    if len(listed) < layers or not set(listed) <= {0, 1}:
        raise fields.wrong(
            "no_rope_layers",
            listed,
            f"a number for each of {format_count(layers, 'layer')}, 1 where it has rope, else 0",
        )
    return tuple(value == 1 for value in listed[:layers])


def read_folder(config: FolderConfig) -> ModelSpec:
    """The figures in config.json."""
    fields = config.fields
    config.refuse_activation("hidden_act", "silu")
    spec = config.decoder(NAME, DEFAULTS)
    rotated = rotated_layers(fields, spec.num_layers)
    # Where layers are listed, they have a window whether it is said to be used or not.
    window = config.window(default=None) if fields.texts("layer_types") else window_of(config)
    if window is None:
        config.refuse_other_layers(window)
    spec = config.with_window_in(spec, window, lambda _layers: tuple(not each for each in rotated))
    bias, mlp_bias = fields.boolean("attention_bias", False), fields.boolean("mlp_bias", False)
    return replace(spec, attention_bias=bias, output_bias=bias, mlp_bias=mlp_bias, rope_layers=rotated)


def read_gguf(config: GgufConfig) -> ModelSpec:
    """The figures in a GGUF file, which does not say which layers have rope."""
    spec = config.decoder(NAME, whole_heads=True)
    config.refuse_window(spec)
    return replace(spec, rope_layers=all_but_each(spec.num_layers))


def forward(ops: Ops, model: ForwardContext) -> Tensor:
    """Logits of the step's selected rows, or the rows for the next stage."""
    x = common.enter(ops, model)
    rotation = common.angles(ops, model.rope)
    for index, layer in enumerate(model.parameters.layers):
        qkv = common.project_qkv(ops, model, layer, common.normed(ops, model, x, layer["input_norm"]))
        x = common.attend(ops, model, index, x, qkv, common.rotation_in(model, index, rotation))
        x = common.feed_forward(ops, model, index, x)
    return common.leave(ops, model, x)


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
