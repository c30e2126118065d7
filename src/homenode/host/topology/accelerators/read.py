"""All accelerators of a host. A vendor whose tool and driver are absent contributes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from homenode.cpuset import format_cpu_list
from homenode.host.topology.accelerators.amd import read_amd
from homenode.host.topology.accelerators.ascend import read_ascend
from homenode.host.topology.accelerators.cells import node_of_cpus
from homenode.host.topology.accelerators.nvidia import read_nvidia
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Accelerators, Node, PciDevice
from homenode.host.topology.source import Source

READERS = (read_ascend, read_nvidia, read_amd)


def read_accelerators(
    source: Source, devices: Sequence[PciDevice], nodes: Sequence[Node], online: Sequence[int]
) -> Accelerators:
    """The chips of all READERS. Never raises: what cannot be understood is in `errors` and `notes`.

    `online`: CPUs that are online; a chip whose local CPUs all are not is noted, as such a list usually belongs to
    another machine or container.
    """
    found = [read(source, devices, nodes) for read in READERS]
    told = tuple(chip for one in found for chip in one.chips)
    chips = tuple(_in_agreement(chip, nodes) for chip in told)
    usable = set(online)
    astray = [
        f"{chip.kind} {chip.id}" for chip in chips if chip.local_cpus and usable and usable.isdisjoint(chip.local_cpus)
    ]
    notes = [note for one in found for note in one.notes]
    if astray:
        message = (
            f"no CPU that is local to {', '.join(astray[:8])}{' and more' if len(astray) > 8 else ''} is online here"
        )
        notes.append(
            Finding(
                "warning", "local_cpus_offline", message, "Bring these CPUs online, or expect remote memory traffic."
            )
        )
    notes += _disagreements(told, devices, nodes)
    device_type = next((one.device_type for one in found if one.device_type), None)
    return Accelerators(chips, device_type, tuple(error for one in found for error in one.errors), tuple(notes))


def _in_agreement(chip: Accelerator, nodes: Sequence[Node]) -> Accelerator:
    """The chip without local CPUs that all lie outside the node that its tool or the firmware names: the node counts,
    everywhere.
    """
    return replace(chip, local_cpus=()) if _outside(chip.local_cpus, chip.node, nodes) else chip


def _outside(cpus: Sequence[int], named: int | None, nodes: Sequence[Node]) -> bool:
    """Return whether the CPUs are those of other nodes than the one named. False where either says nothing."""
    own = next((node for node in nodes if node.id == named), None)
    return (
        own is not None and bool(own.cpus) and node_of_cpus(cpus, nodes) is not None and set(cpus).isdisjoint(own.cpus)
    )


def _disagreements(chips: Sequence[Accelerator], devices: Sequence[PciDevice], nodes: Sequence[Node]) -> list[Finding]:
    """`device_place_disagrees` for chips whose vendor's tool contradicts itself or the firmware; the tool's node is
    taken.
    """
    firmware = {device.address: device.node for device in devices}
    astray = []
    for chip in chips:
        named = firmware.get(chip.address or "")
        if _outside(chip.local_cpus, chip.node, nodes):
            astray.append(f"{chip.kind} {chip.id}: node {chip.node}, but local CPUs {format_cpu_list(chip.local_cpus)}")
        elif chip.node != named and _outside(chip.local_cpus, named, nodes):
            astray.append(f"{chip.kind} {chip.id}: the tool says node {chip.node}, the firmware node {named}")
    if not astray:
        return []
    more = f"; and {len(astray) - 4} more" if len(astray) > 4 else ""
    message = f"two sources disagree on where devices are; {'; '.join(astray[:4])}{more}"
    remedy = "The first one named is taken. Measure which is right, and give --numa-bind-nodes where it is the other."
    return [Finding("warning", "device_place_disagrees", message, remedy)]
