"""The state that layers keep of a sequence besides keys and values, for a model or a part of one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from homenode.compute.ops import IntArray, StateGeometry
from homenode.model.part import ModelPart
from homenode.model.spec import DeltaSpec, ModelSpec
from homenode.model.state_mixers import columns_of, in_runs


def state_layers(spec: ModelSpec, part: ModelPart) -> dict[int, int]:
    """Return of each layer of a part that keeps a state, by its number in the model, its number in the state memory."""
    having = (layer for layer in range(part.layers.first, part.layers.end) if spec.state_of(layer) is not None)
    return {layer: number for number, layer in enumerate(having)}


def state_by_kv_head(spec: ModelSpec, part: ModelPart) -> tuple[tuple[IntArray, IntArray], ...] | None:
    """Return of each layer of a part that keeps a state: which channels of its convolution and which of its matrices go
    with each KV head, whatever the cut over ranks (see `StateMixer.by_kv_head`). None where the groups of a state and
    KV heads do not go together here.
    """
    each, rest = divmod(spec.state_groups, spec.num_kv_heads)
    groups, heads = part.state_groups, part.kv_heads
    if rest or (groups.first, groups.count) != (heads.first * each, heads.count * each):
        return None
    kept = [state for layer in state_layers(spec, part) if (state := spec.state_of(layer)) is not None]
    if spec.delta is not None:
        return (_delta_by_kv_head(spec.delta, part),) * len(kept)
    if spec.mixer is not None:
        return (spec.mixer.by_kv_head(part),) * len(kept)
    if heads.count > 1 or any(state.heads for state in kept):
        return None
    return tuple((np.arange(state.channels, dtype=np.int32)[None], np.zeros((1, 0), np.int32)) for state in kept)


def _delta_by_kv_head(delta: DeltaSpec, part: ModelPart) -> tuple[IntArray, IntArray]:
    keys, each = part.state_groups.count, delta.value_heads // delta.key_heads
    key_heads, of_key = in_runs(keys, part.kv_heads.count), np.arange(each, dtype=np.int32)
    apart = (1, keys) if delta.interleaved else (each, 1)  # value heads of key heads that follow, and of the same
    value_heads = (key_heads[:, :, None] * apart[0] + of_key * apart[1]).reshape(len(key_heads), -1)
    key, width = columns_of(key_heads, delta.key_width), keys * delta.key_width
    values = columns_of(value_heads, delta.value_width)
    return np.concatenate([key, width + key, 2 * width + values], axis=1), value_heads


def floats_of_kv_head(held: Sequence[tuple[IntArray, IntArray]], state: StateGeometry) -> int:
    """Values of a sequence's state that go with a KV head. `held`: see `state_by_kv_head`."""
    return sum(
        layer.taps * channels.shape[1] + matrices.shape[1] * layer.key_width * layer.value_width
        for layer, (channels, matrices) in zip(state.layers, held, strict=True)
    )


def matrix_operations(spec: ModelSpec) -> float:
    """Operations of a token with each element of a state's matrices: the gated delta rule takes something out of a
    matrix before it adds to it, the recurrence of Mamba 2 does not.
    """
    return 7.0 if spec.delta is not None else 5.0


def state_geometry_of(spec: ModelSpec, part: ModelPart | None = None) -> StateGeometry | None:
    """Shape of the state memory of a part (None: all) of a model; None where no layer of it keeps a state.

    A rank has its groups of each state: of its heads, and of the channels of its convolution, the same share.
    """
    part = part or ModelPart.whole(spec)
    here, groups = part.state_groups.count, spec.state_groups
    if spec.mixer is not None:
        layers = (spec.mixer.state(part),) * len(state_layers(spec, part))
        return StateGeometry(layers) if layers else None
    kept = [state for layer in state_layers(spec, part) if (state := spec.state_of(layer)) is not None]
    if not kept:
        return None
    return StateGeometry(
        tuple(
            replace(state, channels=state.channels * here // groups, heads=state.heads * here // groups)
            for state in kept
        )
    )
