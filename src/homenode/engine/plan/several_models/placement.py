"""The place of each of several models on one host: its NUMA nodes, its cores and its memory, and why. Pure.

A model lies on one node where that has room for it, and on several neighbours where it has not, or where it is so large
that its share of the nodes makes it faster. Models of one node divide the node's cores evenly, and nobody else computes
on them; more models than cores take turns, the small ones first. Pinned models have their places first, the largest of
them in front: they are in memory together. Where the others do not fit beside them they may lie on the same memory, and
take turns there, too. The order in which models are named changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from homenode.cpuset import format_cpu_list
from homenode.engine.plan.several_models.cores import ModelCores, share_cores
from homenode.engine.plan.several_models.nodes import ModelDemand, NodeUse, no_room
from homenode.errors import PlacementError, UserError
from homenode.host.plan.resources.core_order import without_low_power
from homenode.host.plan.resources.cores import NO_NODE, AllowedCore, allowed_cores, cpus_of
from homenode.host.plan.resources.memory_nodes import memory_nodes
from homenode.host.topology.host import Host
from homenode.units import format_bytes, format_count

LARGE = 4 << 30  # bytes of a model that are worth another node, where nodes are to be had


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
    nodes = NodeUse(
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
    groups = {name: group for name, (group, _) in chosen.items()}
    made = share_cores(nodes, placed, groups, _named_pools(host, placed), reserve_cores)
    if made.refused:
        others = place_models(host, [each for each in demands if each.name not in made.refused], reserve_cores)
        return PlacedModels(others.places, {**others.refused, **made.refused})
    cpus = {name: tuple(sorted(cpus_of(pool))) for name, pool in made.pools.items()}
    cpus |= {each.name: tuple(sorted(each.cpus)) for each in placed if each.cpus}
    return PlacedModels({each.name: _place(each, chosen, cpus, made) for each in placed}, refused)


def _named_pools(host: Host, demands: Sequence[ModelDemand]) -> dict[str, list[AllowedCore]]:
    """The cores of the models whose CPUs settings name."""
    every = {core.id: core for own in allowed_cores(host).values() for core in own}
    named = {each.name: sorted({host.cpu_by_id[cpu].core for cpu in each.cpus}) for each in demands if each.cpus}
    return {name: [every[core] for core in cores] for name, cores in named.items()}


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


def _choose_nodes(host: Host, nodes: NodeUse, demand: ModelDemand, count: int) -> tuple[tuple[int, ...], str]:
    """The nodes of a model, and why these."""
    if demand.cpus:
        found = [host.cpu_by_id[at].node for at in demand.cpus]
        own = tuple(sorted({NO_NODE if node is None else node for node in found}))
        return own, f"on CPUs {format_cpu_list(demand.cpus)}, as settings say"
    if demand.nodes:
        named = tuple(sorted(node for node in nodes.cores if max(0, node) in demand.nodes))
        if not nodes.holds(named, demand.memory, beside_pinned=True):
            raise no_room(nodes, demand, named)
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
    raise no_room(nodes, demand, everywhere)


def _has_cores(nodes: NodeUse, group: Sequence[int], demand: ModelDemand) -> bool:
    """Return whether each node of a group has a core for this model beside those that are there."""
    left = [len(nodes.cores[node]) - nodes.models.get(node, 0) for node in group]
    return min(left) > 0 and sum(left) >= demand.least_cores


def _groups(host: Host, nodes: NodeUse, size: int) -> list[tuple[int, ...]]:
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


def _why(nodes: NodeUse, group: Sequence[int], demand: ModelDemand, fair: int, *, beside_pinned: bool) -> str:
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


def _place(
    demand: ModelDemand,
    everybody: Mapping[str, tuple[tuple[int, ...], str]],
    pools: Mapping[str, tuple[int, ...]],
    made: ModelCores,
) -> ModelPlace:
    group, why = everybody[demand.name]
    cpus = pools[demand.name]
    shared = tuple(sorted(name for name, own in pools.items() if name != demand.name and set(own) & set(cpus)))
    text = f"{why}; CPUs {format_cpu_list(cpus)}"
    if beside := sum(
        name != demand.name and not set(other).isdisjoint(group) for name, (other, _) in everybody.items()
    ):
        text += f", a fair share beside {format_count(beside, 'model')} there"
    text = "; ".join((text, *made.notes.get(demand.name, ())))
    if shared:
        because = "settings say" if demand.cpus else _why_shared(group, made.crowded)
        text += f"; shares CPUs with {', '.join(shared)}, as {because}: they take turns"
    lies = {max(0, home): size for home, size in made.memory[demand.name].items()}
    return ModelPlace(demand.name, tuple(max(0, node) for node in group), cpus, lies, text, shared)


def _why_shared(group: Sequence[int], crowded: Collection[int]) -> str:
    nodes = [max(0, node) for node in group if node in crowded]
    if not nodes:
        return "settings name all others of its nodes"
    if len(nodes) == 1:
        return f"node {nodes[0]} has fewer cores than models"
    return f"nodes {format_cpu_list(nodes)} have fewer cores than models"
