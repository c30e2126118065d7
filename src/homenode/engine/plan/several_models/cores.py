"""The cores of each of several models on its nodes, so that what its threads cut of it fits there. Pure.

Every node is dealt out evenly to the models there. A model of several nodes is cut in proportion to its cores of each,
so where one of them has no room for its part it leaves cores of that node to others; a model that would be left with
fewer cores than engines and workers has more of another node instead. Then cores are kept back for the server.

    24 GiB on nodes of 16 GiB     dealt 2 + 16: 21.3 GiB on node 1; 2 + 4 fit: 12 cores of node 1 are left out
    the same with 16 workers      6 + 12 fit: 4 of node 0 are those of others there, and 4 of node 1 are left out
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from homenode.engine.plan.several_models.nodes import ModelDemand, NodeUse, no_room
from homenode.errors import PlacementError, UserError
from homenode.host.plan.resources.cores import AllowedCore, deal_in_turn
from homenode.host.plan.resources.share import set_aside
from homenode.units import format_count

Pools = dict[str, list[AllowedCore]]
Groups = Mapping[str, Sequence[int]]


@dataclass
class ModelCores:
    """Cores of models, while they are shared out. `groups`, `pools`, `memory`: the nodes, the cores and the bytes by
    node of each model; `crowded`: nodes with fewer cores than models; `left`: cores that a model has no room to use;
    `refused`: models that have no room on their nodes, why; `notes`: what else is to be told of a model.
    """

    nodes: NodeUse
    demands: Mapping[str, ModelDemand]
    groups: Groups
    pools: Pools
    crowded: set[int]
    memory: dict[str, dict[int, int]] = field(default_factory=dict)
    left: list[AllowedCore] = field(default_factory=list)
    refused: dict[str, PlacementError] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)

    def count(self, name: str) -> list[int]:
        """Cores of a model by node of its group."""
        return [len(self.on(name, node)) for node in self.groups[name]]

    def on(self, name: str, node: int) -> list[AllowedCore]:
        return [core for core in self.pools[name] if core.node == node]

    def limits(self, name: str, *, others: bool = False) -> dict[int, float]:
        """Bytes that a model may have by where they lie, beside pinned ones; `others`: so that each that is not pinned
        still has room beside it.
        """
        found, pinned = {}, self.demands[name].pin
        for home, size in self.memory[name].items():
            found[home] = self.nodes.free(home, beside_pinned=True) + (size if pinned else 0)
            if others and pinned:
                rest = (self.memory[each].get(home, 0) for each, demand in self.demands.items() if not demand.pin)
                found[home] -= max(rest, default=0)
        return found

    def lay(self, name: str, counts: Sequence[int]) -> None:
        """Have a model's bytes lie as so many threads by node cut them."""
        found, demand = self.nodes.parts(self.groups[name], self.demands[name].memory, counts), self.demands[name]
        for home, size in found.items() if demand.pin else ():
            self.nodes.pinned[home] += size - self.memory[name][home]
        self.memory[name] = found

    def drop(self, name: str, node: int, count: int) -> list[AllowedCore]:
        """Take so many cores of a node from a model, the slowest, and the last of equals."""
        _, gone = set_aside({0: self.on(name, node)}, count, {})
        self.pools[name] = [core for core in self.pools[name] if core not in gone]
        return gone


def share_cores(
    nodes: NodeUse, demands: Sequence[ModelDemand], groups: Groups, named: Pools, reserve: int | None
) -> ModelCores:
    """Share out the nodes' cores. `demands`: those with a place, who comes first in front; `named`: the cores of those
    whose CPUs settings name. UserError where so many cores cannot be kept back.
    """
    dealt, crowded = _deal(nodes.cores, [demand for demand in demands if demand.name not in named], groups)
    made = ModelCores(nodes, {each.name: each for each in demands}, groups, dealt | named, crowded)
    made.memory = {each.name: nodes.parts(groups[each.name], each.memory) for each in demands}
    for demand in demands:
        _fit(made, demand)
        if made.refused:  # the others are placed without it
            return made
    _keep_back(made, reserve)
    _give_left(made)
    return made


def most_cores(cores: Sequence[int], homes: Sequence[int], size: int, limits: Mapping[int, float]) -> list[int]:
    """As many of `cores` by node as can be, one of each at least, so that `size` bytes in proportion to them fit within
    `limits` by where they lie (`homes`, by node); all 0 where there are none.
    """
    here = {home: [at for at, own in enumerate(homes) if own == home] for home in limits}
    all_here = {home: sum(cores[at] for at in own) for home, own in here.items()}
    for total in range(sum(cores), len(cores) - 1, -1):
        most = {home: min(all_here[home], max(0, limits[home]) * total // max(1, size)) for home in here}
        if sum(most.values()) >= total and all(most[home] >= len(own) for home, own in here.items()):
            return _within(cores, here, most, total)
    return [0] * len(cores)


def _within(
    cores: Sequence[int], here: Mapping[int, Sequence[int]], most: Mapping[int, float], total: int
) -> list[int]:
    """`total` of these cores, no more than `most` of those of a home (`here`: the places of its nodes); one core is
    taken after the other of the node that has most.
    """
    found = list(cores)
    for home, own in here.items():
        while sum(found[at] for at in own) > most[home]:
            found[max(own, key=lambda at: found[at])] -= 1
    while sum(found) > total:
        found[max(range(len(found)), key=lambda at: found[at])] -= 1
    return found


def _deal(
    cores: Mapping[int, Sequence[AllowedCore]], order: Sequence[ModelDemand], groups: Groups
) -> tuple[Pools, set[int]]:
    """The cores of each model: of every node even runs for the models there, the smallest model's first; and the nodes
    with fewer cores than models. Each model has a core of every node that its memory lies on: what nobody there
    computes with could not lie there.
    """
    found: Pools = {demand.name: [] for demand in order}
    crowded = set()
    for node, own in cores.items():
        here = [demand for demand in reversed(order) if node in groups[demand.name]]
        if len(own) < len(here):
            crowded.add(node)
        for demand, run in zip(here, deal_in_turn(own, len(here)), strict=True):
            found[demand.name].extend(run)
    return found, crowded


def _fit(made: ModelCores, demand: ModelDemand) -> None:
    """Have a model lie on its nodes as its threads cut it, on fewer cores where these have no room for so much."""
    name, group = demand.name, made.groups[demand.name]
    dealt = made.count(name)
    least = max(len(group), min(demand.least_cores, sum(dealt)))
    counts = _most_that_fit(made, demand, least)
    while len(group) > 1 and sum(counts) < least and not demand.cpus and _borrow(made, demand):
        counts = _most_that_fit(made, demand, least)
    if sum(counts) < (sum(dealt) if demand.cpus else least):
        made.refused[name] = no_room(made.nodes, demand, group, dealt, made.memory[name] if demand.pin else {})
        return
    for node, count, before in zip(group, counts, dealt, strict=True):
        if beyond := len(made.on(name, node)) - count:
            made.left += made.drop(name, node, beyond)
        if count < before:
            left = format_count(before - count, "core")
            made.notes.setdefault(name, []).append(f"{left} of node {max(0, node)} left out: no room")
        elif count > before:
            more = format_count(count - before, "core")
            made.notes.setdefault(name, []).append(f"{more} of node {max(0, node)} beyond a fair share")
    made.lay(name, counts)


def _most_that_fit(made: ModelCores, demand: ModelDemand, least: int) -> list[int]:
    """Cores by node, so that others keep their room where `least` cores are to be had so."""
    name, cores = demand.name, made.count(demand.name)
    homes = [made.nodes.homes[node] for node in made.groups[name]]
    found = most_cores(cores, homes, demand.memory, made.limits(name, others=True))
    return found if sum(found) >= least else most_cores(cores, homes, demand.memory, made.limits(name))


def _borrow(made: ModelCores, demand: ModelDemand) -> bool:
    """Give a model a core that another one can do without, of the node that has most room for each core of it."""
    name, limits = demand.name, made.limits(demand.name)
    room = {node: limits[made.nodes.homes[node]] / len(made.on(name, node)) for node in made.groups[name]}
    for node in sorted(room, key=lambda node: -room[node]):
        donors = [each for each in _alone_on(made, node) if len(made.pools[each]) > made.demands[each].least_cores]
        donor = max(donors, key=lambda each: len(made.pools[each]), default=None)
        if donor is not None and len(made.pools[donor]) > 1:
            made.pools[name] += made.drop(donor, node, 1)
            return True
    return False


def _alone_on(made: ModelCores, node: int) -> list[str]:
    """The models that lie on this node only, and whose CPUs no settings name."""
    return [name for name, group in made.groups.items() if tuple(group) == (node,) and not made.demands[name].cpus]


def _keep_back(made: ModelCores, reserve: int | None) -> None:
    """Keep so many cores free of models: those of nodes without models, then those that are left, then one by one of
    the models that have most, but no model's last one of a node.
    """
    every = [core for own in made.nodes.cores.values() for core in own]
    models = sum(not demand.cpus for demand in made.demands.values())
    total, wanted = len(every), reserve if reserve is not None else int(len(every) > max(2, models))
    having = {core.id for core in (*made.left, *itertools.chain.from_iterable(made.pools.values()))}
    kept = min(wanted, sum(core.id not in having for core in every))
    of_left = min(wanted - kept, len(made.left))
    del made.left[:of_left]
    kept += of_left
    while kept < wanted and _keep_one(made):
        kept += 1
    if reserve is not None and kept < wanted and models:
        raise UserError(
            f"--reserve-cpus {reserve}: {format_count(models, 'model')} and {format_count(total, 'core')} leave {kept}"
            f"; give {f'{kept} or less' if kept else kept}",
            param="reserve_cpus",
        )


def _keep_one(made: ModelCores) -> bool:
    """Take a core from the model that has most of those that can do without, of the node that it has most of; return
    whether there is one.
    """
    unnamed = [name for name, demand in made.demands.items() if not demand.cpus]
    for name in sorted(unnamed, key=lambda name: -len(made.pools[name])):
        group, counts = made.groups[name], made.count(name)
        if len(made.pools[name]) <= made.demands[name].least_cores:
            continue
        for at in sorted(range(len(group)), key=lambda at: (-counts[at], -at)):
            fewer = [count - (at == place) for place, count in enumerate(counts)]
            if fewer[at] > 0 and _fits(made, name, fewer):
                made.drop(name, group[at], 1)
                made.lay(name, fewer)
                return True
    return False


def _fits(made: ModelCores, name: str, counts: Sequence[int]) -> bool:
    parts = made.nodes.parts(made.groups[name], made.demands[name].memory, counts)
    limits = made.limits(name, others=True)
    return all(size <= limits[home] for home, size in parts.items())


def _give_left(made: ModelCores) -> None:
    """Give cores that are left to the models that lie on their node only, each to the one with fewest."""
    for core in made.left:
        here = _alone_on(made, core.node)
        if here:
            made.pools[min(here, key=lambda name: len(made.pools[name]))].append(core)
