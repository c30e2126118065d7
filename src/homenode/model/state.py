"""What layers keep of a sequence besides keys and values, for a model or a part of one."""

from __future__ import annotations

from dataclasses import replace

from homenode.compute.ops import StateGeometry
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec


def state_layers(spec: ModelSpec, part: ModelPart) -> dict[int, int]:
    """Of each layer of a part that keeps a state, by its number in the model, its number in the state memory."""
    having = (layer for layer in range(part.layers.first, part.layers.end) if spec.state_of(layer) is not None)
    return {layer: number for number, layer in enumerate(having)}


def groups_of_a_kv_head(spec: ModelSpec, part: ModelPart) -> int | None:
    """How many groups of each state, in order, count as one KV head's, whatever the cut over ranks; None where groups
    and KV heads do not go together in this part.
    """
    each, rest = divmod(spec.state_groups, spec.num_kv_heads)
    groups, heads = part.state_groups, part.kv_heads
    together = (groups.first, groups.count) == (heads.first * each, heads.count * each)
    return each if together and not rest and spec.delta is not None else None


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
