"""NVIDIA GPUs. Sources of truth are `nvidia-smi`, sysfs and /proc/driver/nvidia, which recordings keep; NVML fills what
they lack on a live host.

Without nvidia-smi the PCI functions of the vendor are taken in the order of their addresses, which is how nvidia-smi
numbers them too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from homenode.host.topology.accelerators.cells import (
    Problems,
    label,
    node_of_cpus,
    node_of_device,
    noted,
    number,
    pci_address,
    pci_order,
    tool_error,
)
from homenode.host.topology.accelerators.nvidia_topo import NvidiaTopoRow, parse_topo
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Accelerators, Node, PciDevice
from homenode.host.topology.source import LiveSource, Source

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,pci.bus_id,name", "--format=csv,noheader")
_APPS = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid", "--format=csv,noheader")
_LIST = ("nvidia-smi", "-L")
_GPU_LINE = re.compile(r"GPU ([0-9]{1,5}):", re.ASCII)
_MIG_LINE = re.compile(r"\s+MIG .{0,80}\(UUID: (MIG-[0-9A-Za-z/-]{1,80})\)", re.ASCII)
_TOPO = ("nvidia-smi", "topo", "-m")
_DRIVER = "/proc/driver/nvidia"
_VENDOR = 0x10DE
_COMPUTE, _DISPLAY = 0x0302, 0x0300  # PCI classes: 3D controller; VGA controller
_NO_DEVICES = (
    "no devices were found"  # nvidia-smi's way of saying that the driver is there and no GPU is, with exit code 6
)


def read_nvidia(source: Source, devices: Sequence[PciDevice], nodes: Sequence[Node]) -> Accelerators:
    """The NVIDIA GPUs, ascending by nvidia-smi's index; nothing on a host without the tool and without devices."""
    ours = sorted(
        (one for one in devices if one.vendor == _VENDOR and _usable(one, source)),
        key=lambda one: pci_order(one.address),
    )
    problems = Problems()
    notes: list[Finding] = []
    chips, listed = _from_tool(source, problems, notes)
    if not chips:
        chips = [_from_pci(index, device, source) for index, device in enumerate(ours)]
    if not chips:
        return Accelerators(notes=(*notes, *map(noted, problems.found)))
    topo = _topo(source, problems, notes) if listed else {}
    chips = [_with_addresses(chip, topo.get(chip.id), devices, nodes) for chip in chips]
    if isinstance(source, LiveSource) and not (listed and len(topo) == len(chips)):
        # A recording could not give these answers again; hence only what the recordable sources lack is asked for.
        from homenode.host.topology.accelerators.nvidia_nvml import fill

        chips = fill(chips, source, nodes)
    notes += [noted(error) for error in problems.found]
    if len({chip.name for chip in chips}) > 1 and source.env.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.append(_order_note())
    return Accelerators(tuple(sorted(chips, key=lambda chip: chip.id)), notes=tuple(notes))


def _usable(device: PciDevice, source: Source) -> bool:
    """A data-centre GPU, or a graphics card that NVIDIA's own driver holds (another driver's card runs no CUDA)."""
    kind = device.kind >> 8
    return kind == _COMPUTE or (kind == _DISPLAY and source.read(f"{_DRIVER}/version") is not None)


def _from_tool(source: Source, problems: Problems, notes: list[Finding]) -> tuple[list[Accelerator], bool]:
    """GPUs by `nvidia-smi`, with the processes on them. The flag: whether the tool listed any.

    A tool that fails is told of also where no GPU is seen otherwise: a container may hide the devices of a driver that
    is broken.
    """
    answer = source.command(_QUERY)
    if answer.failure == "missing":
        return [], False
    if answer.failure:
        if _NO_DEVICES not in answer.out.lower():
            notes.append(noted(tool_error(_QUERY, answer)))
        return [], False
    chips = parse_query(answer.out, problems)
    running = _processes(source, notes) if chips else {}
    instances = _mig_instances(source, notes) if chips and "MIG-" in source.env.get("CUDA_VISIBLE_DEVICES", "") else {}
    return [
        replace(chip, processes=running.get(chip.uuid, ()), mig_instances=instances.get(chip.id, ())) for chip in chips
    ], bool(chips)


def parse_query(text: str, problems: Problems) -> list[Accelerator]:
    """GPUs of `nvidia-smi --query-gpu=index,uuid,pci.bus_id,name`, one a line; a name may hold commas. Adds
    `nvidia_smi_unparseable`."""
    chips: dict[int, Accelerator] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",", 3)]
        if cells == [""] or _NO_DEVICES in line.lower():
            continue
        index = number(cells[0])
        address = pci_address(cells[2]) if len(cells) > 2 else None
        if index is None or index in chips or address is None:
            _unparseable(line, problems)
            continue
        uuid = label(cells[1]) if cells[1].startswith("GPU-") else ""  # a broken GPU answers [Unknown Error]
        chips[index] = Accelerator("cuda", index, label(cells[3]) if len(cells) > 3 else "", address=address, uuid=uuid)
    return list(chips.values())


def _unparseable(line: str, problems: Problems) -> None:
    problems.add(
        "nvidia_smi_unparseable",
        "a line of nvidia-smi cannot be read",
        seen=line,
        wanted="index, uuid, PCI address and name, each index once",
        remedy=f"Run `{' '.join(_QUERY)}` by hand.",
    )


def _processes(source: Source, notes: list[Finding]) -> dict[str, tuple[int, ...]]:
    """Process ids by UUID of their GPU."""
    answer = source.command(_APPS)
    if answer.failure in ("timeout", "failed"):
        notes.append(noted(tool_error(_APPS, answer)))
        return {}
    found: dict[str, set[int]] = {}
    for line in answer.out.splitlines():
        uuid, _, pid = line.partition(",")
        if (process := number(pid.strip())) is not None:
            found.setdefault(uuid.strip(), set()).add(process)
    return {uuid: tuple(sorted(pids)) for uuid, pids in found.items()}


def _mig_instances(source: Source, notes: list[Finding]) -> dict[int, tuple[str, ...]]:
    """UUIDs of MIG instances by the index of their GPU."""
    answer = source.command(_LIST)
    if answer.failure in ("timeout", "failed"):
        notes.append(noted(tool_error(_LIST, answer)))
        return {}
    return parse_list(answer.out)


def parse_list(text: str) -> dict[int, tuple[str, ...]]:
    """UUIDs of MIG instances by the index of their GPU, from `nvidia-smi -L`: a line for each GPU, and indented ones
    for its instances.
    """
    found: dict[int, tuple[str, ...]] = {}
    gpu = None
    for line in text.splitlines():
        if head := _GPU_LINE.match(line):
            gpu = int(head[1])
        elif gpu is not None and (instance := _MIG_LINE.match(line)):
            found[gpu] = (*found.get(gpu, ()), instance[1])
    return found


def _topo(source: Source, problems: Problems, notes: list[Finding]) -> Mapping[int, NvidiaTopoRow]:
    answer = source.command(_TOPO)
    if answer.failure in ("timeout", "failed"):
        notes.append(noted(tool_error(_TOPO, answer)))
        return {}
    return parse_topo(answer.out, problems)


def _from_pci(index: int, device: PciDevice, source: Source) -> Accelerator:
    """A GPU without its tool; name and UUID come from the driver's folder in /proc, if it is there."""
    facts: dict[str, str] = {}
    for line in (source.read(f"{_DRIVER}/gpus/{device.address}/information") or "").splitlines():
        name, _, value = line.partition(":")
        facts[name.strip().lower()] = value.strip()
    uuid = facts.get("gpu uuid", "")
    # Question marks until the GPU has been opened once.
    uuid = uuid if uuid.startswith("GPU-") and "?" not in uuid else ""
    return Accelerator(
        "cuda", index, label(facts.get("model", f"NVIDIA {device.device:04x}")), address=device.address, uuid=uuid
    )


def _with_addresses(
    chip: Accelerator, row: NvidiaTopoRow | None, devices: Sequence[PciDevice], nodes: Sequence[Node]
) -> Accelerator:
    """Return the accelerator with its CPUs and nodes: as the tool's topology says, else as sysfs does.

    A node without CPUs is never `node`: Grace and POWER9 show a GPU's own memory as such a node.
    """
    local = row.cpus if row else ()
    if not local:
        local = next((device.local_cpus for device in devices if device.address == chip.address), ())
    processors = {node.id for node in nodes if node.cpus}
    named = row.nodes[0] if row and len(row.nodes) == 1 and row.nodes[0] in processors else None
    node = next(
        (
            one
            for one in (named, node_of_device(chip.address, devices, nodes), node_of_cpus(local, nodes))
            if one is not None
        ),
        None,
    )
    own = row.memory_node if row else None
    return replace(chip, local_cpus=local, node=node, memory_node=own if any(one.id == own for one in nodes) else None)


def _order_note() -> Finding:
    message = (
        "the GPUs are of different kinds: CUDA numbers them by speed unless CUDA_DEVICE_ORDER=PCI_BUS_ID, "
        "nvidia-smi by PCI address"
    )
    remedy = "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, or name GPUs by UUID in CUDA_VISIBLE_DEVICES."
    return Finding("warning", "cuda_device_order", message, remedy)
