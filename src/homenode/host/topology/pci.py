"""PCI functions: what they are, where they are, which interrupts they have. Source: the kernel's
Documentation/ABI/testing/sysfs-bus-pci."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from homenode.cpuset import format_cpu_list
from homenode.host.topology.facts import FactReader, parse_number
from homenode.host.topology.host import Node, PciDevice
from homenode.host.topology.nodes import tells_place
from homenode.units import format_count

PCI_FOLDER = "/sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_MOST_DEVICES = 16384


def read_devices(reader: FactReader, online_cpus: Iterable[int], nodes: Sequence[Node]) -> tuple[PciDevice, ...]:
    """All PCI functions by address. A node that is not online is no node; local CPUs are cut to the online ones.

    For a function of unknown place the kernel lists all CPUs as local: these are left out. Where `local_cpulist` lies
    wholly outside the node that `numa_node` names, the node counts, as the kernel takes the device's memory there,
    and the list is left out. Notes `device_place_disagrees`.
    """
    addresses = [name for name in reader.source.names(PCI_FOLDER) if _ADDRESS.fullmatch(name.lower())]
    if len(addresses) > _MOST_DEVICES:
        reader.note(
            "too_many_devices",
            f"{PCI_FOLDER} lists {format_count(len(addresses), 'function')}; the first {_MOST_DEVICES} are taken",
        )
    here = frozenset(online_cpus)
    by_id = {node.id: node for node in nodes}
    devices = [_read_device(reader, address, here, by_id) for address in addresses[:_MOST_DEVICES]]
    _note_disagreement(reader, devices, by_id)
    told = {(one.node, one.local_cpus) for one in devices}  # a handful on any host
    local = {(node, cpus): _local_cpus(None if node is None else by_id[node], cpus, nodes) for node, cpus in told}
    return tuple(replace(one, local_cpus=local[one.node, one.local_cpus]) for one in devices)


def _read_device(reader: FactReader, address: str, online: frozenset[int], nodes: Collection[int]) -> PciDevice:
    folder = f"{PCI_FOLDER}/{address}"
    node = reader.number(f"{folder}/numa_node")
    local = reader.cpus_or_mask(f"{folder}/local_cpulist", f"{folder}/local_cpus") or ()
    return PciDevice(
        address=address.lower(),
        vendor=reader.number(f"{folder}/vendor") or 0,
        device=reader.number(f"{folder}/device") or 0,
        kind=reader.number(f"{folder}/class") or 0,
        node=node if node in nodes else None,
        local_cpus=_within(local, online),
        irqs=_read_irqs(reader, folder),
    )


def _on_other_node(node: Node | None, cpus: Sequence[int]) -> bool:
    """Return whether CPUs that are said to be local to a device all lie outside its node."""
    return node is not None and bool(node.cpus and cpus) and set(cpus).isdisjoint(node.cpus)


def _note_disagreement(reader: FactReader, devices: Sequence[PciDevice], nodes: Mapping[int, Node]) -> None:
    astray = [one for one in devices if one.node is not None and _on_other_node(nodes[one.node], one.local_cpus)]
    if astray:
        first = astray[0]
        functions = format_count(len(astray), "PCI function")
        message = (
            f"numa_node and local_cpulist of {functions} disagree, such as {first.address}: "
            f"node {first.node} and CPUs {format_cpu_list(first.local_cpus)}; the node is taken"
        )
        reader.note(
            "device_place_disagrees", message, "Update the firmware, or set numa_node below that address as root."
        )


def _local_cpus(own: Node | None, cpus: tuple[int, ...], nodes: Sequence[Node]) -> tuple[int, ...]:
    """The CPUs that are local to a device on node `own`, empty where what is told is no place or another than that
    node.
    """
    unknown = own is None and bool(nodes) and not tells_place(cpus, nodes)
    return () if unknown or _on_other_node(own, cpus) else cpus


@lru_cache(maxsize=64)
def _within(cpus: tuple[int, ...], online: frozenset[int]) -> tuple[int, ...]:
    """The online ones of `cpus`; a host has hundreds of functions and a handful of lists."""
    return tuple(cpu for cpu in cpus if cpu in online)


def _read_irqs(reader: FactReader, folder: str) -> tuple[int, ...]:
    """Message-signalled interrupts; a device without any has its line-based one, unless that is 0 (none)."""
    numbers = (parse_number(name) for name in reader.source.names(f"{folder}/msi_irqs"))
    found = tuple(sorted(number for number in numbers if number is not None and number >= 0))
    line = 0 if found else reader.number(f"{folder}/irq") or 0
    return found or ((line,) if line > 0 else ())
