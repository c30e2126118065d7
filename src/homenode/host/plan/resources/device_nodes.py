"""The nodes that are a device's own, and where it belongs when they are unknown or not allowed. Pure.

Arithmetic over all devices of the host, so that processes which see different devices come to the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from homenode.host.plan.resources.cores import AllowedCore
from homenode.host.topology.host import Accelerator, Host
from homenode.host.topology.nodes import tells_place

DeviceNodes = dict[int, tuple[int, ...]]

_FAR = 256  # beyond every distance of the firmware, which are bytes


def local_nodes(host: Host, chip: Accelerator) -> tuple[int, ...]:
    """Nodes whose CPUs are near the device: those of which its reported affinity holds at least half, else its node;
    empty when unknown.

    With sub-NUMA clustering the affinity spans all nodes of a socket, and all of them count. An affinity that covers
    all nodes of the host alike tells nothing.
    """
    counts: dict[int, int] = {}
    for cpu in chip.local_cpus:
        known = host.cpu_by_id.get(cpu)
        if known is not None and known.node is not None:
            counts[known.node] = counts.get(known.node, 0) + 1
    near = tuple(sorted(node for node, count in counts.items() if 2 * count >= len(host.node_by_id[node].cpus)))
    if near and tells_place(chip.local_cpus, host.nodes):
        return near
    return () if chip.node is None else (chip.node,)


def taking_part(local: Mapping[int, Sequence[int]], asked: Iterable[int], nodes: Iterable[int]) -> tuple[int, ...]:
    """Devices that get a share: those asked for, those with an allowed node of their own, and those whose node is
    unknown, as `local` has them.

    `local`: local nodes by device. A device that is not asked for and has no allowed CPU near it belongs to somebody
    else's cpuset. Should one be asked for by another process with this allowance all the same, then only claims keep
    the two apart.
    """
    wanted, allowed = set(asked), set(nodes)
    return tuple(device for device, own in local.items() if device in wanted or not own or not allowed.isdisjoint(own))


def in_local_order(chips: Iterable[Accelerator]) -> list[Accelerator]:
    """Sort devices by where their reported affinity begins, then by number: of two devices with different halves of one
    node each gets its own half.
    """
    return sorted(chips, key=lambda chip: (min(chip.local_cpus, default=-1), chip.id))


def assign_nodes(
    host: Host, local: Mapping[int, Sequence[int]], cores: Mapping[int, Sequence[AllowedCore]]
) -> DeviceNodes:
    """The allowed nodes that each device has its share of: its own, else the nearest one, else, when unknown, an even
    spread."""
    device_nodes: DeviceNodes = {}
    for device, own in local.items():
        if allowed := tuple(node for node in own if cores.get(node)):
            device_nodes[device] = allowed
    for device, own in local.items():
        if own and device not in device_nodes:
            device_nodes[device] = (nearest(host, own, cores, device_nodes),)
    unknown = [device for device in local if device not in device_nodes]
    device_nodes.update(zip(unknown, spread(host, cores, device_nodes, len(unknown)), strict=True))
    return {device: device_nodes[device] for device in local}


def nearest(
    host: Host, own: Sequence[int], cores: Mapping[int, Sequence[AllowedCore]], device_nodes: DeviceNodes
) -> int:
    """The node with cores that is nearest to `own`; among equally near ones that with most cores for each device that
    has this node."""
    load = _devices_at(device_nodes)
    return min(
        (node for node in cores if cores[node]),
        key=lambda node: (gap(host, own, node), _crowd(load, cores, node), step(own, node)),
    )


def spread(
    host: Host, cores: Mapping[int, Sequence[AllowedCore]], device_nodes: DeviceNodes, count: int
) -> list[tuple[int, ...]]:
    """Nodes for `count` devices of unknown locality, in proportion to cores: each in turn where most cores are left for
    it, far from the others.

    Ascending, so that device order follows node order (sixteen devices on eight equal nodes: two on each).
    """
    load = _devices_at(device_nodes)
    places = [node for node in cores if cores[node]]
    closeness = {node: (-_FAR, -len(places)) for node in places}
    for place, node in enumerate(places):
        if load.get(node):
            _raise_closeness(host, places, place, closeness)
    found: list[int] = []
    for _ in range(count):
        node = min(places, key=lambda node: (_crowd(load, cores, node), *closeness[node], node))
        load[node] = load.get(node, 0) + 1
        _raise_closeness(host, places, places.index(node), closeness)
        found.append(node)
    return [(node,) for node in sorted(found)]


def gap(host: Host, own: Sequence[int], node: int) -> int:
    """The distance from the nearest of `own` to `node` (ACPI SLIT: 10 is the node itself)."""
    return min((host.distance(mine, node) for mine in own), default=255)


def step(own: Sequence[int], node: int) -> tuple[int, bool]:
    """Return how far apart node numbers are, the other half of a pair (0 and 1, 2 and 3) first: to go by where
    distances are all alike.

    Firmware counts nodes socket by socket, and a socket that is more than one node is an even number of them.
    """
    return min(((abs(node - mine), node // 2 != mine // 2) for mine in own), default=(0, False))


def _devices_at(device_nodes: DeviceNodes) -> dict[int, int]:
    load: dict[int, int] = {}
    for nodes in device_nodes.values():
        for node in nodes:
            load[node] = load.get(node, 0) + 1
    return load


def _crowd(load: Mapping[int, int], cores: Mapping[int, Sequence[AllowedCore]], node: int) -> float:
    return (load.get(node, 0) + 1) / len(cores[node])


def _raise_closeness(host: Host, nodes: Sequence[int], index: int, closeness: dict[int, tuple[int, int]]) -> None:
    """Bring every node's closeness to the nodes that have devices up to date: low is far, by distance, else by position
    in the ring of node numbers."""
    for other, node in enumerate(nodes):
        way = abs(index - other)
        distance, ring = closeness[node]
        closeness[node] = max(distance, -host.distance(node, nodes[index])), max(ring, -min(way, len(nodes) - way))
