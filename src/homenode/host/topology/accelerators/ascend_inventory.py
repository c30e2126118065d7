"""The NPUs of a host whose `npu-smi info -m` tells no map: those of the topology, else those on which something runs.

The documented order of sources for the number of NPUs. Without the map nobody says which logical number a chip of a
card has, so each source is read as what it can only mean:

- a label `NPU<n>` or `Phy-ID<n>` of the topology is the logical number n, where the device table of `npu-smi info` has
  as many chips as the topology has labels, or has no table at all; chips and labels are paired in ascending order;
- where the labels are the numbers of cards with several chips each, chips are counted in the order of the device table;
- without a topology the chips are those of the process table, counted as the device table counts them.
"""

from __future__ import annotations

from collections.abc import Sequence

from homenode.host.topology.accelerators.ascend_tables import LOGICAL_LIMIT, DeviceRow, Info, MapRow
from homenode.host.topology.finding import Finding
from homenode.units import format_count

_REMEDY = (
    "Run `npu-smi info -m` by hand. Until it prints its map, compare the numbers here with those of `npu-smi info`, "
    "and give --device-type where the chips' names do not tell it."
)


def inventory_without_map(info: Info, labels: Sequence[int]) -> tuple[tuple[MapRow, ...], str]:
    """The chips, ascending by logical number, and the name of the table that they come from.

    `labels`: numbers of the rows of the topology. Empty where neither table names an NPU.
    """
    known = sorted({(row.npu, row.chip): row for row in info.devices}.items())
    devices = [row for _, row in known]
    if labels:
        rows, table = _of_topology(sorted(set(labels)), devices), "npu-smi info -t topo"
    else:
        rows, table = _of_processes(info, devices), "npu-smi info"
    return tuple(row for row in rows if row.logical < LOGICAL_LIMIT), table


def _of_topology(labels: Sequence[int], devices: Sequence[DeviceRow]) -> list[MapRow]:
    if len(devices) == len(labels):
        return [_row(device, logical) for logical, device in zip(labels, devices, strict=True)]
    if {device.npu for device in devices} == set(labels):
        return [_row(device, logical) for logical, device in enumerate(devices)]
    return [MapRow(label, 0, label, None, _name_of(devices)) for label in labels]


def _of_processes(info: Info, devices: Sequence[DeviceRow]) -> list[MapRow]:
    running = sorted({(process.npu, process.chip or 0) for process in info.processes})
    places = {(device.npu, device.chip): logical for logical, device in enumerate(devices)}
    if all(place in places for place in running) and _are_pairs(devices):
        return [_row(devices[places[place]], places[place]) for place in running]
    width = 1 + max((chip for _, chip in running), default=0)
    return [MapRow(npu, chip, npu * width + chip, None, _name_of(devices)) for npu, chip in running]


def _are_pairs(devices: Sequence[DeviceRow]) -> bool:
    """Return whether cards have several chips, whose logical numbers are then places in the device table; a chip that
    is alone on its card has the card's number.
    """
    return len({device.npu for device in devices}) < len(devices)


def _row(device: DeviceRow, logical: int) -> MapRow:
    return MapRow(device.npu, device.chip, logical, device.physical, device.name)


def _name_of(devices: Sequence[DeviceRow]) -> str:
    """The name that all chips have; empty where they differ or none is told."""
    names = {device.name for device in devices}
    return names.pop() if len(names) == 1 else ""


def map_replaced(rows: Sequence[MapRow], table: str, seen: str) -> Finding:
    """The warning that says where the number of NPUs comes from; `seen`: what `npu-smi info -m` answered."""
    message = (
        f"`npu-smi info -m` prints no map of NPUs (seen: {seen}); {format_count(len(rows), 'NPU is', 'NPUs are')} "
        f"taken from `{table}`"
    )
    return Finding("warning", "npu_map_replaced", message, _REMEDY)
