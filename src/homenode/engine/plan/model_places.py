"""The place of each of several models on one host: its NUMA nodes, its cores and its memory, and why. Pure.

A model lies on one node where that has room for it, and on several neighbours where it has not, or where it is so large
that its share of the nodes makes it faster. Models of one node divide the node's cores evenly, and nobody else computes
on them; more models than cores take turns, the small ones first. Pinned models have their places first, the largest of
them in front: they are in memory together. Where the others do not fit beside them they may lie on the same memory, and
take turns there, too. The order in which models are named changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError, UserError
from homenode.host.plan.core_order import in_proportion, without_low_power
from homenode.host.plan.cores import NO_NODE, AllowedCore, allowed_cores, cpus_of, deal, deal_in_turn
from homenode.host.plan.memory_nodes import memory_nodes
from homenode.host.plan.share import set_aside
from homenode.host.topology.host import Host
from homenode.units import format_bytes, format_count

LARGE = 4 << 30  # bytes of a model that are worth another node, where nodes are to be had


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


@dataclass(frozen=True)
class ModelPlace:
    """`cpus`: all that it may use. `memory`: bytes by node. `shared_with`: models on some of the same cores."""

    name: str
    nodes: tuple[int, ...]
    cpus: tuple[int, ...]
    memory: dict[int, int]
    reason: str
    shared_with: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Bytes on all nodes."""
        return sum(self.memory.values())

    def to_json(self) -> dict[str, object]:
        """The place as `homenode plan --json` prints it."""
        return {
            "name": self.name,
            "nodes": list(self.nodes),
            "cpus": format_cpu_list(self.cpus),
            "memory_bytes": self.total,
            "memory": {str(node): size for node, size in self.memory.items()},
            "shares_cpus_with": list(self.shared_with),
            "reason": self.reason,
        }


@dataclass
class _Nodes:
    """The nodes of a host while models are given places: cores, and `homes`, where the memory of those on them comes
    from; of these the room (None: not known), and what is taken of it, by pinned models and by all; models on each.
    """

    cores: Mapping[int, Sequence[AllowedCore]]
    homes: Mapping[int, int]
    room: Mapping[int, int | None]
    sockets: Mapping[int, int]
    pinned: dict[int, int] = field(default_factory=dict)
    taken: dict[int, int] = field(default_factory=dict)
    models: dict[int, int] = field(default_factory=dict)

    def free(self, home: int, *, beside_pinned: bool = False) -> float:
        """Bytes that are left of a node's memory, where only pinned models count, or all."""
        room, taken = self.room[home], self.pinned if beside_pinned else self.taken
        return float("inf") if room is None else room - taken.get(home, 0)

    def take(self, nodes: Sequence[int], demand: ModelDemand) -> None:
        for home, size in self.parts(nodes, demand.memory).items():
            self.taken[home] = self.taken.get(home, 0) + size
            if demand.pin:
                self.pinned[home] = self.pinned.get(home, 0) + size
        for node in nodes:
            self.models[node] = self.models.get(node, 0) + 1

    def parts(self, nodes: Sequence[int], memory: int, cores: Sequence[int] = ()) -> dict[int, int]:
        """The bytes of whom runs on some nodes by where they lie, in proportion to its cores of each, as weights are
        cut by threads; while these are not known, to all that the nodes have.
        """
        cores = cores or [len(self.cores[node]) for node in nodes]
        found: dict[int, int] = {}
        for node, size in zip(nodes, in_proportion(memory, cores), strict=True):
            found[self.homes[node]] = found.get(self.homes[node], 0) + size
        return found

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


@dataclass(frozen=True)
class PlacedModels:
    """`places`: by name; `refused`: of models that have no room on any of their nodes, why."""

    places: Mapping[str, ModelPlace]
    refused: Mapping[str, PlacementError]


def place_models(host: Host, demands: Sequence[ModelDemand], reserve_cores: int | None = None) -> PlacedModels:
    """A place for each. `reserve_cores`: cores that no model computes on, for the server; None: one, where there are
    more than two and more than models. UserError for nodes and CPUs that settings name and this process may not use.
    """
    cores = {node: tuple(own) for node, own in without_low_power(allowed_cores(host)).items() if own}
    named = _named_cores(host, demands, cores)
    free = {node: tuple(core for core in own if core.id not in named) for node, own in cores.items()}
    homes = {node: next(iter(memory_nodes(host, (node,))), node) for node in cores}
    nodes = _Nodes(
        {node: own or cores[node] for node, own in free.items()},
        homes,
        {home: _room(host, home) for home in homes.values()},
        {node: own[0].socket for node, own in cores.items()},
    )
    order = sorted(demands, key=lambda each: (not each.pin, -each.memory, each.name))
    chosen: dict[str, tuple[tuple[int, ...], str]] = {}
    refused: dict[str, PlacementError] = {}
    for demand in order:
        try:
            chosen[demand.name] = _choose_nodes(host, nodes, demand, len(demands))
        except PlacementError as error:
            refused[demand.name] = error
            continue
        nodes.take(chosen[demand.name][0], demand)
    placed = [demand for demand in order if demand.name in chosen]
    pools = _pools(nodes.cores, [each for each in placed if not each.cpus], chosen, reserve_cores)
    pools |= _named_pools(host, placed)
    memory = {each.name: _fit_memory(nodes, each, chosen[each.name][0], pools[each.name]) for each in placed}
    cpus = {name: tuple(sorted(cpus_of(pool))) for name, pool in pools.items()}
    cpus |= {each.name: tuple(sorted(each.cpus)) for each in placed if each.cpus}
    return PlacedModels({each.name: _place(each, chosen, cpus, memory[each.name]) for each in placed}, refused)


def _named_pools(host: Host, demands: Sequence[ModelDemand]) -> dict[str, list[AllowedCore]]:
    """The cores of the models whose CPUs settings name."""
    every = {core.id: core for own in allowed_cores(host).values() for core in own}
    named = {each.name: sorted({host.cpu_by_id[cpu].core for cpu in each.cpus}) for each in demands if each.cpus}
    return {name: [every[core] for core in cores] for name, cores in named.items()}


def _fit_memory(nodes: _Nodes, demand: ModelDemand, group: Sequence[int], pool: list[AllowedCore]) -> dict[int, int]:
    """The bytes of a model by where they lie, in proportion to its own cores of each node, as its threads cut them.
    Cores of a node that has no room for so much are taken out of the pool, unless settings name them.
    """
    taken = nodes.parts(group, demand.memory) if demand.pin else {}
    while pool and len(group) > 1:
        own = {node: [core for core in pool if core.node == node] for node in group}
        found = nodes.parts(group, demand.memory, [len(own[node]) for node in group])
        beyond = {
            node: found[home] - nodes.free(home, beside_pinned=True) - taken.get(home, 0)
            for node in group
            if len(own[node]) > 1 and (home := nodes.homes[node]) in found
        }
        worst = max(beyond, key=lambda node: beyond[node], default=None)
        if worst is None or beyond[worst] <= 0 or demand.cpus:
            for home, size in found.items() if demand.pin else ():
                nodes.pinned[home] += size - taken.get(home, 0)
            return found
        pool.remove(own[worst][-1])
    return nodes.parts(group, demand.memory)


def _room(host: Host, node: int) -> int | None:
    known = host.node_by_id.get(node)
    if known is None:
        return host.allowance.memory_available or None
    return known.memory if known.free is None else known.free


def _named_cores(host: Host, demands: Sequence[ModelDemand], cores: Mapping[int, Sequence[AllowedCore]]) -> set[int]:
    """The cores of CPUs that settings name, which no other model is given. UserError for CPUs and nodes that are not to
    be had.
    """
    allowed, there = set(host.allowance.cpus), {max(0, node) for node in cores}
    for demand in sorted(demands, key=lambda each: each.name):
        if missing := sorted(set(demand.cpus) - allowed):
            raise UserError(
                f"models.{demand.name}: cpus: CPU {format_cpu_list(missing)} is not there, or not allowed to this "
                f"process, which has {format_cpu_list(host.allowance.cpus)}",
                param="cpus",
            )
        if unknown := sorted(set(demand.nodes) - there):
            raise UserError(
                f"models.{demand.name}: nodes: node {format_cpu_list(unknown)} has no CPU that this process may use; "
                f"there are {format_cpu_list(sorted(there))}",
                param="nodes",
            )
    return {host.cpu_by_id[cpu].core for demand in demands for cpu in demand.cpus}


def _choose_nodes(host: Host, nodes: _Nodes, demand: ModelDemand, count: int) -> tuple[tuple[int, ...], str]:
    """The nodes of a model, and why these."""
    if demand.cpus:
        found = [host.cpu_by_id[at].node for at in demand.cpus]
        own = tuple(sorted({NO_NODE if node is None else node for node in found}))
        return own, f"on CPUs {format_cpu_list(demand.cpus)}, as settings say"
    if demand.nodes:
        named = tuple(sorted(node for node in nodes.cores if max(0, node) in demand.nodes))
        if not nodes.holds(named, demand.memory, beside_pinned=True):
            raise _no_room(nodes, demand, named)
        return named, "on nodes that settings name"
    everywhere = tuple(nodes.cores)
    fair = max(1, min(len(everywhere) // count, -(-demand.memory // LARGE)))
    sizes = (*range(fair, len(everywhere) + 1), *range(fair - 1, 0, -1))
    enough = sum(map(len, nodes.cores.values())) >= count
    for own_cores, beside_pinned in ((True, False), (True, True), (False, False), (False, True)):
        if own_cores and not enough:
            continue
        for size in sizes:
            groups = [
                group
                for group in _groups(host, nodes, size)
                if nodes.holds(group, demand.memory, beside_pinned=beside_pinned)
                and (not own_cores or _has_cores(nodes, group, demand))
            ]
            if groups:
                best = min(groups, key=nodes.standing)
                return best, _why(nodes, best, demand, fair, beside_pinned=beside_pinned)
    raise _no_room(nodes, demand, everywhere)


def _has_cores(nodes: _Nodes, group: Sequence[int], demand: ModelDemand) -> bool:
    """Return whether each node of a group has a core for this model beside those that are there."""
    left = [len(nodes.cores[node]) - nodes.models.get(node, 0) for node in group]
    return min(left) > 0 and sum(left) >= demand.least_cores


def _groups(host: Host, nodes: _Nodes, size: int) -> list[tuple[int, ...]]:
    """Groups of so many nodes that lie near each other: around each node the nearest, and those of its socket that are
    used least or have most room.
    """
    everywhere, found = tuple(nodes.cores), dict[tuple[int, ...], None]()
    for first in everywhere:
        near = sorted(everywhere, key=lambda node: (host.distance(first, node), node))
        own = [node for node in everywhere if nodes.sockets[node] == nodes.sockets[first]]
        quiet = sorted(own, key=lambda node: (node != first, *nodes.standing((node,))))
        roomy = sorted(own, key=lambda node: (node != first, -nodes.free(nodes.homes[node]), node))
        for order in (near, quiet, roomy):
            if len(order) >= size:
                found[tuple(sorted(order[:size]))] = None
    return list(found)


def _why(nodes: _Nodes, group: Sequence[int], demand: ModelDemand, fair: int, *, beside_pinned: bool) -> str:
    at, takes = format_cpu_list([max(0, node) for node in group]), format_bytes(demand.memory)
    if len(group) == 1:
        room = nodes.room[nodes.homes[group[0]]]
        of = "" if room is None else f" of {format_bytes(room)}"
        text = f"{takes}{of} on node {at}, the least used one with room"
    elif len(group) <= fair:
        text = f"{takes} over nodes {at}, its share of {format_count(len(nodes.cores), 'node')}"
    else:
        text = f"{takes} over nodes {at}, as no single node has room for it"
    if beside_pinned:
        text += "; it takes turns in memory with models that are not pinned"
    return text


def _no_room(nodes: _Nodes, demand: ModelDemand, among: Sequence[int]) -> PlacementError:
    homes = sorted({nodes.homes[node] for node in among})
    free = {home: nodes.free(home, beside_pinned=True) for home in homes}
    seen = ", ".join(f"node {max(0, node)}: {format_bytes(max(0, int(size)))}" for node, size in free.items())
    return PlacementError(
        "insufficient_memory",
        f"the model {demand.name} has no room on this host",
        seen=f"it takes {format_bytes(demand.memory)}; beside pinned models there are {seen}",
        wanted="nodes that hold it together",
        remedy="Give it less KV memory (kv-cache-memory, max-model-len), or pin fewer models.",
    )


def _pools(
    cores: Mapping[int, Sequence[AllowedCore]],
    order: Sequence[ModelDemand],
    chosen: Mapping[str, tuple[tuple[int, ...], str]],
    reserve: int | None,
) -> dict[str, list[AllowedCore]]:
    """The cores of each model: of every node even runs for the models there, the smallest model's first. Each model has
    a core of every node that its memory lies on: what nobody there computes with could not lie there.
    """
    found: dict[str, list[AllowedCore]] = {demand.name: [] for demand in order}
    crowded = False
    for node, own in cores.items():
        here = [demand for demand in reversed(order) if node in chosen[demand.name][0]]
        crowded = crowded or len(own) < len(here)
        runs = deal_in_turn(own, len(here)) if len(own) < len(here) else deal(own, len(here))
        for demand, run in zip(here, runs, strict=True):
            found[demand.name].extend(run)
    total = sum(map(len, cores.values()))
    spare = sum(len(pool) - len({core.node for core in pool}) for pool in found.values())
    if reserve is None:
        reserve = 1 if spare and not crowded and total > max(2, len(order)) else 0
    if not crowded and reserve and found:
        if reserve > spare:
            raise UserError(
                f"--reserve-cpus {reserve}: {format_count(len(order), 'model')} and {format_count(total, 'core')} "
                f"leave {spare}; give {spare} or less",
                param="reserve_cpus",
            )
        _keep_back(found, reserve)
    return found


def _keep_back(found: Mapping[str, list[AllowedCore]], count: int) -> None:
    """Take so many cores from the models that have most, but from none its last core of a node."""
    for _ in range(count):
        several = {name: _beside_others(pool) for name, pool in found.items()}
        name = max((name for name in found if several[name]), key=lambda name: len(found[name]))
        _, (core,) = set_aside({0: several[name]}, 1, {})
        found[name].remove(core)


def _beside_others(pool: Sequence[AllowedCore]) -> list[AllowedCore]:
    """Return the cores of a pool whose nodes have other cores of it, too."""
    nodes = [core.node for core in pool]
    return [core for core in pool if nodes.count(core.node) > 1]


def _place(
    demand: ModelDemand,
    everybody: Mapping[str, tuple[tuple[int, ...], str]],
    pools: Mapping[str, tuple[int, ...]],
    memory: Mapping[int, int],
) -> ModelPlace:
    group, why = everybody[demand.name]
    cpus = pools[demand.name]
    shared = tuple(sorted(name for name, own in pools.items() if name != demand.name and set(own) & set(cpus)))
    text = f"{why}; CPUs {format_cpu_list(cpus)}"
    if beside := sum(
        name != demand.name and not set(other).isdisjoint(group) for name, (other, _) in everybody.items()
    ):
        text += f", a fair share beside {format_count(beside, 'model')} there"
    if shared:
        because = "settings say" if demand.cpus else "there are more models than cores"
        text += f"; shares CPUs with {', '.join(shared)}, as {because}: they take turns"
    lies = {max(0, home): size for home, size in memory.items()}
    return ModelPlace(demand.name, tuple(max(0, node) for node in group), cpus, lies, text, shared)
