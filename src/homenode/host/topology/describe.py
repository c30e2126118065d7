"""A host as JSON, and a short name for its structure."""

from __future__ import annotations

import hashlib

from homenode.host.topology.host import Host


def fingerprint(host: Host) -> str:
    """Sixteen hexadecimal digits that change when the machine's CPUs, nodes or PCI devices do, and with nothing else.

    Neither the allowance nor sizes of memory take part: a plan made in a container can be compared with one made outside it.
    """
    cpus = [(cpu.id, cpu.core, cpu.socket, cpu.die, cpu.cluster, cpu.l3, cpu.node, cpu.capacity) for cpu in host.cpus]
    nodes = [(node.id, node.cpus, sorted(node.distances.items())) for node in host.nodes]
    devices = [(device.address, device.vendor, device.device, device.kind, device.node) for device in host.devices]
    return hashlib.sha256(repr((host.machine, cpus, nodes, devices)).encode()).hexdigest()[:16]
