"""All accelerators of a host. A vendor whose tool and driver are absent contributes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.host.topology.accelerators.amd import read_amd
from homenode.host.topology.accelerators.ascend import read_ascend
from homenode.host.topology.accelerators.nvidia import read_nvidia
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerators, Node, PciDevice
from homenode.host.topology.source import Source


def read_accelerators(
    source: Source, devices: Sequence[PciDevice], nodes: Sequence[Node], online: Sequence[int]
) -> Accelerators:
    """Ascend NPUs, NVIDIA and AMD GPUs. Never raises: what cannot be understood is in `errors` and `notes`.

    `online`: CPUs that are online; a chip whose local CPUs all are not is noted, as such a list usually belongs to another machine or container.
    """
    found = [read_ascend(source, devices, nodes), read_nvidia(source, devices, nodes), read_amd(source, devices, nodes)]
    chips = tuple(chip for one in found for chip in one.chips)
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
    device_type = next((one.device_type for one in found if one.device_type), None)
    return Accelerators(chips, device_type, tuple(error for one in found for error in one.errors), tuple(notes))
