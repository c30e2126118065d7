"""A host as JSON, and a short name for its structure. Nothing in either moves by itself: no counters, no free
memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from homenode.cpuset import format_cpu_list
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.host import Accelerator, Accelerators, Cpu, Host, Node, PciDevice


def fingerprint(host: Host) -> str:
    """Sixteen hexadecimal digits that change when the machine's CPUs, nodes or PCI devices do, and with nothing else.

    Neither the allowance nor sizes of memory take part: a plan made in a container can be compared with one made
    outside it.
    """
    cpus = [(cpu.id, cpu.core, cpu.socket, cpu.die, cpu.cluster, cpu.l3, cpu.node, cpu.capacity) for cpu in host.cpus]
    nodes = [(node.id, node.cpus, sorted(node.distances.items())) for node in host.nodes]
    devices = [(device.address, device.vendor, device.device, device.kind, device.node) for device in host.devices]
    return hashlib.sha256(repr((host.machine, cpus, nodes, devices)).encode()).hexdigest()[:16]


def host_to_dict(host: Host) -> dict[str, Any]:
    """The JSON form of a host.

    Sets of CPUs are lists such as "0-3,8". `cpus.cores`, `.clusters` and `.l3` are lists of such sets; `.sockets` and
    `.capacities` name them by the kernel's number; those of `.priority` may run faster than others of their kind. A
    CPU is on the lowest of the `nodes` that list it. Sizes are bytes, PCI numbers are hexadecimal as in sysfs.
    """
    return {
        "fingerprint": fingerprint(host),
        "machine": host.machine,
        "kernel": host.kernel,
        "numa_balancing": host.numa_balancing,
        "transparent_huge_pages": host.transparent_huge_pages,
        "cpus": _cpus(host),
        "nodes": [_node(node) for node in host.nodes],
        "devices": [_device(device) for device in host.devices],
        "accelerators": _accelerators(host.accelerators),
        "interrupts": [
            {"irq": entry.irq, "chip": entry.chip, "actions": list(entry.actions)} for entry in host.interrupts
        ],
        "allowance": _allowance(host.allowance),
        "variables": dict(sorted(host.variables.items())),
        "notes": [note.to_dict() for note in host.notes],
    }


def _cpus(host: Host) -> dict[str, Any]:
    dies = _by(host.cpus, lambda cpu: (cpu.socket, cpu.die))
    return {
        "model": host.cpu_model,
        "online": format_cpu_list(cpu.id for cpu in host.cpus),
        "offline": format_cpu_list(host.offline),
        "isolated": format_cpu_list(host.isolated),
        "sockets": {str(socket): cpus for socket, cpus in _by(host.cpus, lambda cpu: cpu.socket).items()},
        "dies": [{"socket": socket, "die": die, "cpus": cpus} for (socket, die), cpus in dies.items()],
        "l3": list(_by((cpu for cpu in host.cpus if cpu.l3 is not None), lambda cpu: cpu.l3).values()),
        "clusters": list(_by((cpu for cpu in host.cpus if cpu.cluster is not None), lambda cpu: cpu.cluster).values()),
        "cores": [format_cpu_list(cpus) for cpus in host.cores.values()],
        "capacities": {str(capacity): cpus for capacity, cpus in _by(host.cpus, lambda cpu: cpu.capacity).items()},
        "priority": format_cpu_list(cpu.id for cpu in host.cpus if cpu.priority),
    }


def _by(cpus: Iterable[Cpu], key: Callable[[Cpu], Any]) -> dict[Any, str]:
    """CPU lists by a key of the CPU, in the order of their lowest CPUs."""
    found: dict[Any, list[int]] = {}
    for cpu in cpus:
        found.setdefault(key(cpu), []).append(cpu.id)
    return {name: format_cpu_list(members) for name, members in found.items()}


def _node(node: Node) -> dict[str, Any]:
    return {
        "id": node.id,
        "cpus": format_cpu_list(node.cpus),
        "memory": node.memory,
        "distances": {str(other): distance for other, distance in node.distances.items()},
        "huge_pages": {str(size): count for size, count in node.huge_pages.items()},
    }


def _device(device: PciDevice) -> dict[str, Any]:
    return {
        "address": device.address,
        "vendor": f"0x{device.vendor:04x}",
        "device": f"0x{device.device:04x}",
        "class": f"0x{device.kind:06x}",
        "node": device.node,
        "local_cpus": format_cpu_list(device.local_cpus),
        "irqs": list(device.irqs),
    }


def _accelerators(found: Accelerators) -> dict[str, Any]:
    return {
        "device_type": found.device_type,
        "chips": [_chip(chip) for chip in found.chips],
        "errors": [error.to_dict() for error in found.errors],
        "notes": [note.to_dict() for note in found.notes],
    }


def _chip(chip: Accelerator) -> dict[str, Any]:
    return {
        "kind": chip.kind,
        "id": chip.id,
        "name": chip.name,
        "address": chip.address,
        "local_cpus": format_cpu_list(chip.local_cpus),
        "node": chip.node,
        "memory_node": chip.memory_node,
        "uuid": chip.uuid,
        "card": chip.card,
        "chip": chip.chip,
        "physical": chip.physical,
        "processes": list(chip.processes),
        "mig_instances": list(chip.mig_instances),
    }


def _allowance(allowance: Allowance) -> dict[str, Any]:
    return {
        "cpus": format_cpu_list(allowance.cpus),
        "physical_cpus": format_cpu_list(allowance.physical_cpus),
        "mask_origin": allowance.mask_origin,
        "cpuset": _list_or_none(allowance.cpuset),
        "memory_nodes": format_cpu_list(allowance.mems),
        "cpu_quota": allowance.cpu_quota,
        "usable_threads": allowance.usable_threads,
        "memory_limit": allowance.memory_limit,
    }


def _list_or_none(cpus: Sequence[int] | None) -> str | None:
    return None if cpus is None else format_cpu_list(cpus)
