"""Disjoint pools of whole cores: each device its part of its own nodes, and more only where that part is too small to
work with. Pure.

own nodes         |== node 0 ==|              |== 2 ==|            an equal run for each device of that node
too small a home                                      |-- 3 --     cores of the nearest nodes, until there are FEW CPUs
no known home                   |-- node 1 --|                     equal parts of the nodes that are nobody's
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from homenode.host.plan.resources.core_order import regular_cores
from homenode.host.plan.resources.cores import AllowedCore, cpus_of, deal
from homenode.host.plan.resources.device_nodes import DeviceNodes, gap, step
from homenode.host.topology.host import Host

# CPUs that a device's work takes: two for interrupts, one each for the process, its submit and its release thread.
FEW = 5

Cores = Mapping[int, Sequence[AllowedCore]]
Pools = dict[int, list[AllowedCore]]


@dataclass(frozen=True, slots=True)
class Shares:
    """`pools`: cores by device, those of its nodes first. `device_nodes`: where each has its share. `lent`: cores that
    no pool has, by the device that a reserve may take them for; nobody has the same."""

    pools: Pools
    device_nodes: DeviceNodes
    lent: Pools


def share(host: Host, cores: Cores, device_nodes: DeviceNodes, own: Mapping[int, Sequence[int]]) -> Shares:
    """Cores of every device. There are at least as many cores as devices; nobody goes without.

    `own`: the nodes that are known to be a device's own; empty for CPU workers and devices of unknown place, which
    share all nodes that are nobody's. The others stay on `device_nodes` as long as their part of them has FEW CPUs;
    with fewer they get cores of the nearest other nodes until there are so many, but never so many that another device
    is left with fewer. Devices with the same nodes have runs of them in the order in which `device_nodes` has them.

    A device that would go without (too few cores for all everywhere near) moves to the nearest node that can take one
    more.
    """
    device_nodes = dict(device_nodes)
    while True:
        shares = _share_once(host, cores, device_nodes, own)
        pools = shares.pools
        starved = [device for device, pool in pools.items() if not pool]
        if not starved:
            return shares
        moved = _nearest_with_cores(host, cores, device_nodes, starved[-1])
        if moved is None:
            # So few cores that device_nodes which span several nodes get in each other's way: locality is given up
            # before anybody is refused.
            pools = dict(zip(pools, deal([core for node in cores.values() for core in node], len(pools)), strict=True))
            nodes = {device: tuple(sorted({core.node for core in pool})) for device, pool in pools.items()}
            return Shares(pools, nodes, {})
        device_nodes[starved[-1]] = (moved,)


def set_aside(
    pools: Mapping[int, Sequence[AllowedCore]], count: int, lent: Mapping[int, Sequence[AllowedCore]]
) -> tuple[Pools, list[AllowedCore]]:
    """Return what is left of the pools when `count` cores are kept back, and those. Pools and `lent` have that many,
    and one more for each device.

    Each core comes from what is lent while there is some, then from the pool with most left, so that no device loses
    more than another: from its farthest node the slowest core, the last among equals.
    """
    left = {device: list(pool) for device, pool in pools.items()}
    extra = {device: list(lent.get(device, ())) for device in pools}
    kept: list[AllowedCore] = []
    for _ in range(count):
        pool = max((extra if any(extra.values()) else left).values(), key=len)
        farthest = [core for core in pool if core.node == pool[-1].node]
        slowest = min(core.standing for core in farthest)
        core = next(core for core in reversed(farthest) if core.standing == slowest)
        pool.remove(core)
        kept.append(core)
    return left, sorted(kept, key=lambda core: (core.node, core.id))


def _share_once(host: Host, cores: Cores, device_nodes: DeviceNodes, own: Mapping[int, Sequence[int]]) -> Shares:
    pools = _at_home(cores, device_nodes)
    taken = {node for nodes in device_nodes.values() for node in nodes}
    free = {node: list(found) for node, found in cores.items() if node not in taken and found}
    sockets = {node: found[0].socket for node, found in cores.items() if found}
    nearest = {device: _by_distance(host, own[device], sockets, free) for device in pools if own[device]}
    _complete(pools, free, nearest)
    homeless = {device: pool for device, pool in pools.items() if not own[device]}
    if free and homeless:
        _fill(host, homeless, free, device_nodes, sockets)
        free = {}
    larger = {device: list(pool) for device, pool in pools.items()}
    if any(free.values()):
        _fill(host, larger, free, device_nodes, sockets)
    return Shares(pools, device_nodes, {device: larger[device][len(pool) :] for device, pool in pools.items()})


def _complete(pools: Pools, free: dict[int, list[AllowedCore]], nodes: Mapping[int, Sequence[int]]) -> None:
    """Bring the pools of the devices in `nodes` to FEW CPUs, one core at a time to the smallest. `nodes`: by device,
    nearest first."""
    short = {device for device in nodes if _count(pools[device]) < FEW}
    while short:
        device = min(short, key=lambda device: (_count(pools[device]), device))
        core = next((core for node in nodes[device] if (core := _spared(pools, free, node, device))), None)
        if core is not None:
            pools[device].append(core)
        if core is None or _count(pools[device]) >= FEW:
            short.discard(device)


def _spared(pools: Pools, free: dict[int, list[AllowedCore]], node: int, device: int) -> AllowedCore | None:
    """A core of the node that nobody has, else the last one there of the largest pool that keeps FEW CPUs without
    it."""
    if nobodys := [core for core in free.get(node, ()) if not core.low_power]:
        fastest = max(nobodys, key=lambda core: core.standing)
        free[node].remove(fastest)
        return fastest
    last = {other: core for other, pool in pools.items() for core in pool if core.node == node and other != device}
    for other in sorted(last, key=lambda other: -_count(pools[other])):  # few, of many pools, have a core there
        if _count(pools[other]) - len(last[other].cpus) >= FEW:
            pools[other].remove(last[other])
            return last[other]
    return None


def _by_distance(host: Host, own: Sequence[int], sockets: Mapping[int, int], free: Collection[int]) -> list[int]:
    """The nodes with cores, the nearest to `own` first: by distance, of those as far first the free ones, then those of
    the same socket, then by number."""
    home = sockets.get(own[0])
    return sorted(
        sockets,
        key=lambda node: (gap(host, own, node), node not in free, sockets[node] != home, step(own, node), node),
    )


def _count(pool: Sequence[AllowedCore]) -> int:
    return len(cpus_of(regular_cores(pool)))


def _at_home(cores: Cores, device_nodes: DeviceNodes) -> Pools:
    """Every node in equal runs for the devices that have it; devices with the same several nodes share what they get of
    them in one row."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, nodes in device_nodes.items():
        groups.setdefault(nodes, []).append(device)
    gained: dict[tuple[int, ...], list[AllowedCore]] = {group: [] for group in groups}
    for node in sorted({node for group in groups for node in group}):
        # Those with the fewest other device_nodes come first: they get the core that is left over.
        here = sorted((group for group in groups if node in group), key=lambda group: (len(group), groups[group][0]))
        seats = [group for group in here for _ in groups[group]]
        for group, run in zip(seats, deal(cores.get(node, ()), len(seats)), strict=True):
            gained[group].extend(run)
    return {
        device: run
        for group, devices in groups.items()
        for device, run in zip(devices, deal(gained[group], len(devices)), strict=True)
    }


def _fill(
    host: Host, pools: Pools, free: dict[int, list[AllowedCore]], device_nodes: DeviceNodes, sockets: Mapping[int, int]
) -> None:
    """Hand out the cores of nodes that nobody has: how many by need, from which node by distance.

    Each step empties a node or contents a device, so that a node is split among no more devices than it must be.
    """
    needs = _needs({device: len(pool) for device, pool in pools.items()}, sum(map(len, free.values())))
    pairs = sorted(
        (
            gap(host, device_nodes[device], node),
            sockets.get(device_nodes[device][0]) != sockets[node],
            step(device_nodes[device], node),
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
    """Return how many more cores each device gets so that those with the fewest come up to one level, and nobody above
    it gets any.
    """
    order = sorted(counts, key=lambda device: (counts[device], device))
    rising, level, extra = 1, supply + counts[order[0]], 0
    below = 0
    for number, device in enumerate(order, 1):
        below += counts[device]
        even, rest = divmod(supply + below, number)
        if even >= counts[device]:
            rising, level, extra = number, even, rest
    return {device: level + (place < extra) - counts[device] for place, device in enumerate(order[:rising])}


def _nearest_with_cores(host: Host, cores: Cores, device_nodes: DeviceNodes, device: int) -> int | None:
    """The nearest node with more cores than devices that have it."""
    load = {node: sum(node in nodes for other, nodes in device_nodes.items() if other != device) for node in cores}
    wide_enough = [node for node in cores if len(cores[node]) > load[node] and (node,) != device_nodes[device]]
    return min(
        wide_enough,
        key=lambda node: (gap(host, device_nodes[device], node), step(device_nodes[device], node)),
        default=None,
    )
