"""The split of a model's layers that makes the slowest stage fastest: what `--layer-split auto` means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homenode.errors import CapacityError, UserError


@dataclass(frozen=True)
class StageCost:
    """What a stage's device takes: seconds for one layer, for what it has besides (the output matrix of the last), and the layers it has room for."""

    layer_s: float
    fixed_s: float = 0.0
    most_layers: int | None = None

    def seconds(self, layers: int) -> float:
        """Of a stage with so many layers."""
        return self.fixed_s + layers * self.layer_s


def balanced_layers(costs: Sequence[StageCost], layers: int) -> tuple[int, ...]:
    """The layers of each stage, so that the slowest is as fast as can be: a pipeline full of micro-batches is as fast as that one.

    Each has one at least and no more than it has room for; of equals the most even split, the first stages having more. UserError for more stages
    than layers, CapacityError where the layers have no room.
    """
    if len(costs) > layers:
        raise UserError(
            f"--pipeline-parallel-size {len(costs)}: this model has {layers} layers, and a stage has one at least; give {layers} or less",
            param="pipeline_parallel_size",
        )
    most = [layers if cost.most_layers is None else cost.most_layers for cost in costs]
    if sum(most) < layers or min(most) < 1:
        raise CapacityError(
            f"--layer-split auto: the stages have room for {', '.join(map(str, most))} layers, and this model has {layers}; use more or larger devices",
            param="layer_split",
        )
    split = [1] * len(costs)
    for _ in range(layers - len(costs)):  # each where it ends first: costs only grow, so the slowest stage stays the fastest possible
        can = [stage for stage, count in enumerate(split) if count < most[stage]]
        split[min(can, key=lambda stage: (costs[stage].seconds(split[stage] + 1), split[stage], stage))] += 1
    return tuple(split)
