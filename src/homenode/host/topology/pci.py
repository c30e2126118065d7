"""PCI functions: what they are, where they are, which interrupts they have. Source: the kernel's Documentation/ABI/testing/sysfs-bus-pci."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import lru_cache

from homenode.host.topology.facts import FactReader, parse_number
from homenode.host.topology.host import PciDevice

PCI_FOLDER = "/sys/bus/pci/devices"
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII)
_MOST_DEVICES = 16384


def read_devices(reader: FactReader, online_cpus: Iterable[int], nodes: Collection[int]) -> tuple[PciDevice, ...]:
    """All PCI functions by address. A node that is not online is no node; local CPUs are cut to the online ones."""
    addresses = [name for name in reader.source.names(PCI_FOLDER) if _ADDRESS.fullmatch(name.lower())]
    if len(addresses) > _MOST_DEVICES:
        reader.note(
            "too_many_devices", f"{PCI_FOLDER} lists {len(addresses)} functions; the first {_MOST_DEVICES} are taken"
        )
    here = frozenset(online_cpus)
    return tuple(_read_device(reader, address, here, nodes) for address in addresses[:_MOST_DEVICES])


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
