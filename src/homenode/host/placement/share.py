"""Disjoint pools of whole cores: each device its part of its own nodes, then cores of nodes that are nobody's, nearest first. Pure.

own nodes        |== node 0 ==|              |== node 2 ==|          an equal run for each device at home there
nobody's nodes                 |-- node 1 --|              |-- 3 --|  to those with the fewest cores, until all have as many
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homenode.host.placement.cores import Core, deal
from homenode.host.placement.homes import Homes, gap, step
from homenode.host.topology.host import Host

Cores = Mapping[int, Sequence[Core]]
Pools = dict[int, list[Core]]


def share(host: Host, cores: Cores, homes: Homes) -> tuple[Pools, Homes]:
    """Cores of every device, those of its home first, and its home. There are at least as many cores as devices; nobody goes without.

    Devices of one home have runs of it in the order in which `homes` has them.

    A device that would (its nodes have fewer cores than devices) moves to the nearest node that can take one more.
    """
    homes = dict(homes)
    while True:
        pools = _share_once(host, cores, homes)
        starved = [device for device, pool in pools.items() if not pool]
        if not starved:
            return pools, homes
        moved = _room_for(host, cores, homes, starved[-1])
        if moved is None:
            # So few cores that homes which span several nodes get in each other's way: locality is given up before anybody is refused.
            pools = dict(zip(pools, deal([core for node in cores.values() for core in node], len(pools)), strict=True))
            return pools, {device: tuple(sorted({core.node for core in pool})) for device, pool in pools.items()}
        homes[starved[-1]] = (moved,)


def set_aside(pools: Mapping[int, Sequence[Core]], count: int) -> tuple[Pools, list[Core]]:
    """What is left of the pools when `count` cores are kept back, and those. The pools have that many, and one more for each device.

    Each core comes from the pool with most left, so that no device loses more than another: from the farthest node of that pool, the slowest
    core there, the last among equals.
    """
    left = {device: list(pool) for device, pool in pools.items()}
    kept: list[Core] = []
    for _ in range(count):
        pool = max(left.values(), key=len)
        farthest = [core for core in pool if core.node == pool[-1].node]
        slowest = min(core.speed_band for core in farthest)
        core = next(core for core in reversed(farthest) if core.speed_band == slowest)
        pool.remove(core)
        kept.append(core)
    return left, sorted(kept, key=lambda core: (core.node, core.id))


def _share_once(host: Host, cores: Cores, homes: Homes) -> Pools:
    pools = _at_home(cores, homes)
    taken = {node for nodes in homes.values() for node in nodes}
    free = {node: list(found) for node, found in cores.items() if node not in taken and found}
    if free:
        sockets = {node: found[0].socket for node, found in cores.items() if found}
        _fill(host, pools, free, homes, sockets)
    return pools


def _at_home(cores: Cores, homes: Homes) -> Pools:
    """Every node in equal runs for the devices at home there; devices with the same several nodes share what they get of them in one row."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, nodes in homes.items():
        groups.setdefault(nodes, []).append(device)
    gained: dict[tuple[int, ...], list[Core]] = {group: [] for group in groups}
    for node in sorted({node for group in groups for node in group}):
        # Those with the fewest other homes come first: they get the core that is left over.
        here = sorted((group for group in groups if node in group), key=lambda group: (len(group), groups[group][0]))
        seats = [group for group in here for _ in groups[group]]
        for group, run in zip(seats, deal(cores.get(node, ()), len(seats)), strict=True):
            gained[group].extend(run)
    return {
        device: run
        for group, devices in groups.items()
        for device, run in zip(devices, deal(gained[group], len(devices)), strict=True)
    }


def _fill(host: Host, pools: Pools, free: dict[int, list[Core]], homes: Homes, sockets: Mapping[int, int]) -> None:
    """Hand out the cores of nodes that are nobody's home: how many by need, from which node by distance.

    Each step empties a node or contents a device, so that a node is split among no more devices than it must be.
    """
    needs = _needs({device: len(pool) for device, pool in pools.items()}, sum(map(len, free.values())))
    pairs = sorted(
        (
            gap(host, homes[device], node),
            sockets.get(homes[device][0]) != sockets[node],
            step(homes[device], node),
            device,
            node,
        )
        for device in needs
        for node in free
    )
    for *_, device, node in pairs:
        count = min(needs[device], len(free[node]))
        pools[device].extend(free[node][:count])
        del free[node][:count]
        needs[device] -= count


def _needs(counts: Mapping[int, int], supply: int) -> dict[int, int]:
    """How many more cores each device gets so that those with the fewest come up to one level, and nobody above it gets any."""
    order = sorted(counts, key=lambda device: (counts[device], device))
    rising, level, extra = 1, supply + counts[order[0]], 0
    below = 0
    for number, device in enumerate(order, 1):
        below += counts[device]
        even, rest = divmod(supply + below, number)
        if even >= counts[device]:
            rising, level, extra = number, even, rest
    return {device: level + (place < extra) - counts[device] for place, device in enumerate(order[:rising])}


def _room_for(host: Host, cores: Cores, homes: Homes, device: int) -> int | None:
    """The nearest node with more cores than devices at home there."""
    load = {node: sum(node in nodes for other, nodes in homes.items() if other != device) for node in cores}
    roomy = [node for node in cores if len(cores[node]) > load[node] and (node,) != homes[device]]
    return min(roomy, key=lambda node: (gap(host, homes[device], node), step(homes[device], node)), default=None)
