"""The accelerator of the host that a worker's device is. Pure.

Torch counts the devices that the variable of their kind shows, in its order: with ASCEND_RT_VISIBLE_DEVICES=5,4 the
device npu:0 is NPU 5.
"""

from __future__ import annotations

from homenode.errors import PlacementError
from homenode.host.topology.accelerator_kinds import KINDS
from homenode.host.topology.accelerators.visible import visible_devices
from homenode.host.topology.host import Accelerator, Host


def torch_devices(host: Host) -> dict[str, Accelerator]:
    """The accelerators that torch would see, by the name that it would have for each, in its order."""
    chips = {chip.id: chip for chip in host.accelerators.chips}
    shown = _shown(host)
    kept = chips.values() if shown is None else (chips[number] for number in shown if number in chips)
    return {f"torch:{KINDS[chip.kind].torch}:{number}": chip for number, chip in enumerate(kept)}


def chip_of(host: Host, device: str) -> Accelerator | None:
    """The accelerator that `torch:npu:1` and its like are; None where the host tells of none such."""
    kind, _, number = device.removeprefix("torch:").partition(":")
    return torch_devices(host).get(f"torch:{kind}:{int(number or 0)}")


def _shown(host: Host) -> tuple[int, ...] | None:
    """None where nothing restricts them, or what does cannot be read: torch then says so itself."""
    try:
        return visible_devices(host.accelerators, host.variables, None)
    except PlacementError:
        return None
