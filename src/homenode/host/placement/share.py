"""Disjoint pools of whole cores: each device its part of its own nodes, then cores of nodes that are nobody's, nearest
first. Pure.

own nodes        |== node 0 ==|              |== node 2 ==|          an equal run for each device of that node
nobody's nodes                 |-- node 1 --|              |-- 3 --|  to those with the fewest cores, until all have
                                                                      as many
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homenode.host.placement.cores import AllowedCore, deal
from homenode.host.placement.device_nodes import DeviceNodes, gap, step
from homenode.host.topology.host import Host

Cores = Mapping[int, Sequence[AllowedCore]]
Pools = dict[int, list[AllowedCore]]


def share(host: Host, cores: Cores, device_nodes: DeviceNodes) -> tuple[Pools, DeviceNodes]:
    """Cores of every device, those of its own nodes first, and these nodes. There are at least as many cores as
    devices; nobody goes without.

    Devices with the same nodes have runs of them in the order in which `device_nodes` has them.

    A device that would (its nodes have fewer cores than devices) moves to the nearest node that can take one more.
    """
    device_nodes = dict(device_nodes)
    while True:
        pools = _share_once(host, cores, device_nodes)
        starved = [device for device, pool in pools.items() if not pool]
        if not starved:
            return pools, device_nodes
        moved = _nearest_with_cores(host, cores, device_nodes, starved[-1])
        if moved is None:
            # So few cores that device_nodes which span several nodes get in each other's way: locality is given up
            # before anybody is refused.
            pools = dict(zip(pools, deal([core for node in cores.values() for core in node], len(pools)), strict=True))
            return pools, {device: tuple(sorted({core.node for core in pool})) for device, pool in pools.items()}
        device_nodes[starved[-1]] = (moved,)


def set_aside(pools: Mapping[int, Sequence[AllowedCore]], count: int) -> tuple[Pools, list[AllowedCore]]:
    """What is left of the pools when `count` cores are kept back, and those. The pools have that many, and one more for
    each device.

    Each core comes from the pool with most left, so that no device loses more than another: from the farthest node of
    that pool, the slowest core there, the last among equals.
    """
    left = {device: list(pool) for device, pool in pools.items()}
    kept: list[AllowedCore] = []
    for _ in range(count):
        pool = max(left.values(), key=len)
        farthest = [core for core in pool if core.node == pool[-1].node]
        slowest = min(core.standing for core in farthest)
        core = next(core for core in reversed(farthest) if core.standing == slowest)
        pool.remove(core)
        kept.append(core)
    return left, sorted(kept, key=lambda core: (core.node, core.id))


def _share_once(host: Host, cores: Cores, device_nodes: DeviceNodes) -> Pools:
    pools = _at_home(cores, device_nodes)
    taken = {node for nodes in device_nodes.values() for node in nodes}
    free = {node: list(found) for node, found in cores.items() if node not in taken and found}
    if free:
        sockets = {node: found[0].socket for node, found in cores.items() if found}
        _fill(host, pools, free, device_nodes, sockets)
    return pools


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
    """Hand out the cores of nodes that no device has: how many by need, from which node by distance.

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
    """How many more cores each device gets so that those with the fewest come up to one level, and nobody above it gets
    any."""
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
