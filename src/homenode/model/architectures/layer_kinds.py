"""The layers of a decoder that see a window only, and those that have no rope, where files of several families say it
alike.
"""

from __future__ import annotations

from dataclasses import replace

from homenode.model.config.folder_config import FolderConfig
from homenode.model.config.gguf_config import GgufConfig
from homenode.model.formats.fields import Fields
from homenode.model.spec import ModelSpec
from homenode.units import format_count

INTERVAL = 4  # in most families each layer of that number is the other one
ROPE_FIELDS = frozenset(("no_rope_layers", "no_rope_layer_interval"))
WINDOW_FIELDS = frozenset(("sliding_window", "use_sliding_window", "max_window_layers"))


def all_but_each(layers: int, interval: int = INTERVAL) -> tuple[bool, ...]:
    """Return of each layer whether it is not one of each `interval`-th."""
    return tuple((layer + 1) % interval != 0 for layer in range(layers))


def all_but_first_of_each(layers: int, interval: int = INTERVAL) -> tuple[bool, ...]:
    """Return of each layer whether it is not the first of `interval` that follow each other."""
    return tuple(layer % interval != 0 for layer in range(layers))


def layers_with_mlp(fields: Fields, layers: int, first: int) -> tuple[int, ...]:
    """The layers that have an MLP in place of experts, by `mlp_layer_types`, or the `first` where the file has none."""
    kinds = fields.texts("mlp_layer_types") or ("dense",) * min(first, layers) + ("sparse",) * max(layers - first, 0)
    if len(kinds) != layers or not set(kinds) <= {"dense", "sparse"}:
        raise fields.wrong("mlp_layer_types", kinds, f"a list of {layers} values, each dense or sparse")
    return tuple(layer for layer, kind in enumerate(kinds) if kind == "dense")


def rotated_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Return which layers have rope by `no_rope_layers`, where 1 means that one has it, or else by the interval."""
    interval = fields.integer("no_rope_layer_interval", INTERVAL)
    listed = fields.integers("no_rope_layers")
    if not listed:
        return all_but_each(layers, interval)
    if len(listed) < layers or not set(listed) <= {0, 1}:
        wanted = f"a number for each of {format_count(layers, 'layer')}, 1 where it has rope, else 0"
        raise fields.wrong("no_rope_layers", listed, wanted)
    return tuple(value == 1 for value in listed[:layers])


def window_in_use(config: FolderConfig) -> int | None:
    """The sliding window of a config.json in which it counts only where `use_sliding_window` says so."""
    return config.window(default=4096) if config.fields.boolean("use_sliding_window", False) else None


def with_upper_window(config: FolderConfig, spec: ModelSpec, window: int | None, first: int) -> ModelSpec:
    """`spec` with the window in the layers from `max_window_layers` on; `first`: where config.json does not say."""

    def upper(layers: int) -> tuple[bool, ...]:
        lowest = config.fields.integer("max_window_layers", first, minimum=0)
        return tuple(layer >= lowest for layer in range(layers))

    return config.with_window_in(spec, window, upper)


def with_windows(config: FolderConfig, spec: ModelSpec) -> ModelSpec:
    """`spec` of a config.json in which the layers with a window are those with rope."""
    window = config.window(default=4096)
    if window is None:
        config.refuse_other_layers(window)
        return spec

    def patterned(layers: int) -> tuple[bool, ...]:
        return all_but_each(layers, config.fields.integer("sliding_window_pattern", INTERVAL))

    spec = config.with_window_in(spec, window, patterned)
    return replace(spec, rope_layers=spec.sliding_layers or (False,) * spec.num_layers)


def with_gguf_windows(config: GgufConfig, spec: ModelSpec, window: int | None) -> ModelSpec:
    """The same in a GGUF file."""
    if window is None:
        return spec
    spec = config.with_window_in(spec, window, all_but_each)
    return replace(spec, rope_layers=spec.sliding_layers or (False,) * spec.num_layers)
