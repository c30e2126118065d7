"""The split of a model's layers that makes the slowest stage fastest: what `--layer-split auto` means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homenode.errors import CapacityError, UserError
from homenode.units import format_count


@dataclass(frozen=True)
class StageTime:
    """The time that a stage's device takes: seconds for one layer, and for what it has besides (the output matrix of
    the last).
    """

    layer_s: float
    fixed_s: float = 0.0

    def seconds(self, layers: int) -> float:
        """Return the seconds of a stage with so many layers."""
        return self.fixed_s + layers * self.layer_s


@dataclass(frozen=True)
class LayerCapacity:
    """Memory that workers take their layers from. `where`: in words. `takers`: of each stage, how many of its workers
    take from it, each a share of every layer of its stage. `shares`: so many of them fit in all, below 0 where not even
    what workers have besides layers does.
    """

    where: str
    takers: tuple[int, ...]
    shares: int

    def holds(self, split: Sequence[int]) -> bool:
        """Return whether stages of so many layers have room."""
        return sum(takers * layers for takers, layers in zip(self.takers, split, strict=True)) <= self.shares


def balanced_layers(
    costs: Sequence[StageTime], layers: int, capacities: Sequence[LayerCapacity] = ()
) -> tuple[int, ...]:
    """The layers of each stage, so that the slowest is as fast as can be: a pipeline full of micro-batches is as fast
    as that one.

    Each has one at least, and no room holds more than it can; of equals the most even split, the first stages having
    more. Rooms are to be apart or within each other, or what is found may not be the fastest. UserError for more stages
    than layers, CapacityError where the layers have no room.
    """
    if len(costs) > layers:
        raise UserError(
            f"--pipeline-parallel-size {len(costs)}: this model has {format_count(layers, 'layer')}, and a stage "
            f"has one at least; give {layers} or less",
            param="pipeline_parallel_size",
        )
    split = [1] * len(costs)
    if any(not capacity.holds(split) for capacity in capacities):
        raise _no_room(capacities, layers)
    # Each where it ends first: costs only grow, so the slowest stage stays the fastest possible.
    for _ in range(layers - len(costs)):
        can = [
            stage
            for stage in range(len(costs))
            if all(capacity.holds(_with_one_more(split, stage)) for capacity in capacities if capacity.takers[stage])
        ]
        if not can:
            raise _no_room(capacities, layers)
        split[min(can, key=lambda stage: (costs[stage].seconds(split[stage] + 1), split[stage], stage))] += 1
    return tuple(split)


def _with_one_more(split: Sequence[int], stage: int) -> list[int]:
    return [layers + (number == stage) for number, layers in enumerate(split)]


def _no_room(capacities: Sequence[LayerCapacity], layers: int) -> CapacityError:
    told = "; ".join(f"{capacity.where} has room for {in_words(capacity)}" for capacity in capacities)
    return CapacityError(
        f"--layer-split auto: this model has {format_count(layers, 'layer')}, and {told}; use more or larger "
        "devices, allow more memory, or keep weights smaller (--quantize)",
        param="layer_split",
    )


def in_words(capacity: LayerCapacity) -> str:
    """Return how many layers of which stages."""
    stages = [stage for stage, takers in enumerate(capacity.takers) if takers]
    ranks = max(capacity.takers)
    what = (
        f"{max(0, capacity.shares)} shares of layers" if ranks > 1 else format_count(max(0, capacity.shares), "layer")
    )
    return f"{what} of stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
