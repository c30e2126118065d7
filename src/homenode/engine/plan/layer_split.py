"""The number of layers that each stage has, where nobody said so."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.stages.layer_seconds import cache_file, key_of, read_seconds
from homenode.engine.plan.stages.layers import LayerCapacity, balanced_layers
from homenode.engine.plan.stages.stage_cost import stage_costs
from homenode.errors import CapacityError
from homenode.model.spec import ModelSpec
from homenode.model.weights.layout import WeightLayout


def layers_of_stages(
    config: EngineConfig,
    spec: ModelSpec,
    whole: WeightLayout,
    devices: Sequence[str],
    bindings: Sequence[EngineBinding],
    capacities: tuple[tuple[LayerCapacity, ...], tuple[LayerCapacity, ...]],
) -> tuple[int, ...]:
    """Within the first rooms if there is a way. Where only KV memory and buffers are too large, within the others: that
    is said of the settings they come from (`EnginePlan.problems`).
    """
    seen = read_seconds(cache_file())
    keys = [key_of(spec, whole, device, len(binding.team)) for device, binding in zip(devices, bindings, strict=True)]
    costs = stage_costs(
        spec, whole, devices, bindings, config.parallel.tensor_parallel_size, [seen.get(key) for key in keys]
    )
    try:
        return balanced_layers(costs, spec.num_layers, capacities[0])
    except CapacityError:
        return balanced_layers(costs, spec.num_layers, capacities[1])


def layers_alike(
    spec: ModelSpec, whole: WeightLayout, devices: Sequence[str], ranks: int, capacities: tuple[LayerCapacity, ...]
) -> tuple[int, ...]:
    """The same of engines that keep experts in common: whatever CPUs and memory each has, all come to one division.
    `ranks`: of a stage.
    """
    bindings = [EngineBinding((UNPINNED,))] * len(devices)
    costs = stage_costs(spec, whole, devices, bindings, ranks, [None] * len(devices))
    layers = balanced_layers(costs, spec.num_layers)
    return (
        layers
        if all(room.holds(layers) for room in capacities)
        else balanced_layers(costs, spec.num_layers, capacities)
    )
