"""The nodes of a host while several models are given places: what each model wants of them, and what is left. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from homenode.errors import PlacementError
from homenode.host.plan.resources.core_order import in_proportion
from homenode.host.plan.resources.cores import AllowedCore
from homenode.units import format_bytes, format_count

NOTHING: Mapping[int, int] = {}


@dataclass(frozen=True)
class ModelDemand:
    """A model that wants a place. `memory`: bytes it takes while it is loaded. `pin`: it is never unloaded. `nodes`,
    `cpus`: those that settings name; empty: any. `least_cores`: as many engines and workers as it has.
    """

    name: str
    memory: int
    pin: bool = False
    nodes: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    least_cores: int = 1


@dataclass
class NodeUse:
    """The nodes of a host while models are given places: cores, and `homes`, where the memory of those on them comes
    from; of these the room (None: not known), what is taken of it, by pinned models and by all, and `holders`, the
    pinned models that have it; `models`: how many are on each node.
    """

    cores: Mapping[int, Sequence[AllowedCore]]
    homes: Mapping[int, int]
    room: Mapping[int, int | None]
    sockets: Mapping[int, int]
    pinned: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    models: dict[int, int] = field(default_factory=dict)
    holders: dict[int, list[str]] = field(default_factory=dict)

    def free(self, home: int, *, beside_pinned: bool = False) -> float:
        """Bytes that are left of a node's memory, where only pinned models count, or all."""
        room, taken = self.room[home], self.pinned if beside_pinned else self.taken
        return float("inf") if room is None else room - taken.get(home, 0)

    def take(self, nodes: Sequence[int], demand: ModelDemand) -> None:
        for home, size in self.parts(nodes, demand.memory).items():
            self.taken[home] = self.taken.get(home, 0) + size
            if demand.pin:
                self.pinned[home] = self.pinned.get(home, 0) + size
                self.holders.setdefault(home, []).append(demand.name)
        for node in nodes:
            self.models[node] = self.models.get(node, 0) + 1

    def parts(self, nodes: Sequence[int], memory: int, cores: Sequence[int] = ()) -> dict[int, int]:
        """The bytes of whom runs on some nodes by where they lie, in proportion to its cores of each, as weights are
        cut by threads; while these are not known, to all that the nodes have.
        """
        cores = cores or [len(self.cores[node]) for node in nodes]
        found: dict[int, int] = {}
        for node, count in zip(nodes, cores, strict=True):
            found[self.homes[node]] = found.get(self.homes[node], 0) + count
        return dict(zip(found, in_proportion(memory, list(found.values())), strict=True))

    def holds(self, nodes: Sequence[int], memory: int, *, beside_pinned: bool) -> bool:
        return all(
            size <= self.free(home, beside_pinned=beside_pinned) for home, size in self.parts(nodes, memory).items()
        )

    def standing(self, nodes: Sequence[int]) -> tuple[float, float, tuple[int, ...]]:
        """How much these nodes are used already: models for each core, memory in use, and their numbers."""
        cores, models = sum(len(self.cores[node]) for node in nodes), sum(self.models.get(node, 0) for node in nodes)
        homes = [self.homes[node] for node in nodes]
        known = [(self.taken.get(home, 0), room) for home in homes if (room := self.room[home])]
        return models / max(1, cores), max((taken / room for taken, room in known), default=0.0), tuple(nodes)


def no_room(
    nodes: NodeUse,
    demand: ModelDemand,
    group: Sequence[int],
    cores: Sequence[int] = (),
    own: Mapping[int, int] = NOTHING,
) -> PlacementError:
    """The refusal of a model. `cores`: its own by node, where these are known; `own`: bytes by where they lie that are
    counted as those of pinned models and are its own.
    """
    parts = nodes.parts(group, demand.memory, cores)
    free = {home: max(0, nodes.free(home, beside_pinned=True) + own.get(home, 0)) for home in sorted(parts)}
    there = ", ".join(
        f"node {max(0, home)}: {format_bytes(int(size))}" for home, size in free.items() if size < float("inf")
    )
    lacking = [
        f"{format_bytes(int(parts[home] - size))} on node {max(0, home)}"
        for home, size in free.items()
        if size < parts[home]
    ]
    holders = sorted({name for home in free for name in nodes.holders.get(home, ()) if name != demand.name})
    beside = f"pinned models ({', '.join(holders)})" if holders else "pinned models"
    by_node = ", ".join(
        f"{format_count(count, 'core')} of node {max(0, node)}" for node, count in zip(group, cores, strict=False)
    )
    cut = f" and is cut by its cores ({by_node})" if cores else ""
    lack = f"; lacking are {', '.join(lacking)}" if lacking else ""
    least = f", by {format_count(demand.least_cores, 'core')} or more" if cores and demand.least_cores > 1 else ""
    return PlacementError(
        "insufficient_memory",
        f"the model {demand.name} has no room on this host",
        seen=f"it takes {format_bytes(demand.memory)}{cut}; beside {beside} there are {there}{lack}",
        wanted=f"nodes that hold it together{least}",
        remedy="Give it less KV memory (kv-cache-memory, max-model-len), or pin fewer models.",
    )
