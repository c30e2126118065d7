"""AMD GPUs from sysfs alone: the compute driver's topology (/sys/class/kfd) for what they are and their order, PCI for
where they are.

Sources: the kernel's `Documentation/ABI/testing/sysfs-class-kfd` and include/uapi/linux/kfd_sysfs.h. `location_id` is
bus << 8 | device << 3 | function of the PCI address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from homenode.host.topology.accelerators.cells import label, node_of_cpus, node_of_device, number, pci_order
from homenode.host.topology.host import Accelerator, Accelerators, Node, PciDevice
from homenode.host.topology.source import Source

_KFD = "/sys/class/kfd/kfd"
_VENDOR = 0x1002
_CLASSES = (0x0380, 0x0302, 0x1200)  # display controller, 3D controller, processing accelerator
_MOST_NODES = 4096


def read_amd(source: Source, devices: Sequence[PciDevice], nodes: Sequence[Node]) -> Accelerators:
    """The AMD GPUs in the order of HIP's device numbers (that of the compute driver's nodes); without that driver, in
    PCI order."""
    found = list(_compute_nodes(source))
    if not found:
        own = [one for one in devices if one.vendor == _VENDOR and one.kind >> 8 in _CLASSES]
        own.sort(key=lambda one: pci_order(one.address))
        found = [("", f"AMD {one.device:04x}", one.address, "") for one in own]
    chips = []
    for index, (gpu, name, address, uuid) in enumerate(found):
        local = next((device.local_cpus for device in devices if device.address == address), ())
        node = node_of_device(address, devices, nodes)
        chips.append(
            Accelerator(
                kind="rocm",
                id=index,
                name=name,
                address=address,
                local_cpus=local,
                node=node_of_cpus(local, nodes) if node is None else node,
                uuid=uuid,
                processes=_processes(source, gpu),
            )
        )
    return Accelerators(tuple(chips))


def _compute_nodes(source: Source) -> Iterator[tuple[str, str, str | None, str]]:
    """Driver's id, name, PCI address and UUID of every GPU. A node whose properties cannot be read belongs to another
    container."""
    folder = f"{_KFD}/topology/nodes"
    for node in sorted(found for name in source.names(folder)[:_MOST_NODES] if (found := number(name)) is not None):
        facts: dict[str, int] = {}
        for line in (source.read(f"{folder}/{node}/properties") or "").splitlines():
            name, _, value = line.strip().partition(" ")
            if len(value) <= 20 and value.isascii() and value.isdigit():
                facts[name] = int(value)
        if not facts.get("simd_count"):
            continue
        address = _address(facts.get("domain", 0), facts.get("location_id", 0))
        unique = facts.get("unique_id", 0)
        name = label(source.read(f"{folder}/{node}/name") or "AMD GPU")
        yield source.read(f"{folder}/{node}/gpu_id") or "", name, address, f"GPU-{unique:016x}" if unique else ""


def _address(domain: int, location: int) -> str | None:
    """The PCI address; None where the driver does not tell it, as 0 is the host bridge and never a GPU."""
    if not location:
        return None
    return f"{domain & 0xFFFFFFFF:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _processes(source: Source, gpu: str) -> tuple[int, ...]:
    """Processes that hold memory of the GPU with this driver's id."""
    if number(gpu) is None:
        return ()
    pids = filter(None, map(number, source.names(f"{_KFD}/proc")))
    return tuple(sorted(pid for pid in pids if source.read(f"{_KFD}/proc/{pid}/vram_{gpu}") not in (None, "", "0")))
