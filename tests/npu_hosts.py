"""Recorded Ascend hosts for tests, put together from what the kernel and npu-smi would print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Host
from homenode.host.topology.source import CommandResult, RecordedSource

_RULE = "+===========================+===============+====================================================+\n"
_NAMES = {"A2": "910B2", "A3": "Ascend910", "310P": "310P3", "950": "Ascend950PR"}


@dataclass(frozen=True)
class Chip:
    """One row of the map. `affinity`: the CPU list of its row in the topology matrix; empty: the matrix has no such
    column or row.
    """

    npu: int
    chip: int
    logic: int
    affinity: str = ""
    busy: bool = True


def single_chips(affinity: Mapping[int, str], busy: Sequence[int] | None = None) -> list[Chip]:
    """A2 and 950: one chip a card, and the card's number is the logical id."""
    return [Chip(card, 0, card, cpus, busy is None or card in busy) for card, cpus in affinity.items()]


def double_chips(logic: Sequence[int], busy: Sequence[int] | None = None, first_card: int = 0) -> list[Chip]:
    """A3: two chips a card, no affinity."""
    return [
        Chip(first_card + at // 2, at % 2, number, "", busy is None or number in busy)
        for at, number in enumerate(logic)
    ]


def npu_host(
    nodes: Mapping[int, str],
    chips: Sequence[Chip],
    *,
    style: str = "A2",
    allowed: str | None = None,
    machine: str = "aarch64",
    online: str = "",
    offline: str = "",
    commands: Mapping[str, str | CommandResult] | None = None,
) -> Host:
    """The host that `read_host` makes of these texts. `nodes`: CPU list by node id. `commands` stand in for what would
    be written here.
    """
    texts = {
        "npu-smi info -m": map_text(style, chips),
        "npu-smi info": process_text(style, chips),
        "npu-smi info -t topo": topo_text(style, chips),
    }
    results = {
        line: CommandResult(out) if isinstance(out, str) else out for line, out in {**texts, **(commands or {})}.items()
    }
    return read_host(RecordedSource(machine, kernel_files(nodes, allowed, online, offline), results))


def kernel_files(nodes: Mapping[int, str], allowed: str | None, more_online: str, offline: str) -> dict[str, str]:
    """The files of /proc and /sys that placement needs; every CPU is a core of its own. The last two name CPUs that are
    in no node's list.
    """
    online = sorted(cpu for text in (*nodes.values(), more_online) for cpu in parse_cpu_list(text))
    files = {
        "/proc/self/status": (
            f"Name:\tpython3\nCpus_allowed_list:\t{allowed or format_cpu_list(online)}\n"
            f"Mems_allowed_list:\t{format_cpu_list(nodes)}\n"
        ),
        "/sys/devices/system/cpu/online": format_cpu_list(online) + "\n",
        "/sys/devices/system/cpu/possible": format_cpu_list([*online, *parse_cpu_list(offline)]) + "\n",
    }
    if nodes:
        files["/sys/devices/system/node/online"] = format_cpu_list(nodes) + "\n"
    for node, cpus in nodes.items():
        folder = f"/sys/devices/system/node/node{node}"
        files[f"{folder}/cpulist"] = cpus + "\n"
        files[f"{folder}/distance"] = " ".join("10" if other == node else "20" for other in sorted(nodes)) + "\n"
        files[f"{folder}/meminfo"] = f"Node {node} MemTotal:       67108864 kB\n"
    return files


def map_text(style: str, chips: Sequence[Chip]) -> str:
    """`npu-smi info -m`. Every card ends with its management chip, which has no logical id."""
    columns = {
        "A3": ["NPU ID", "Chip ID", "Chip Logic ID", "Chip Phy-ID", "Chip Name"],
        "950": ["NPU ID", "Slot ID", "Chip ID", "Chip Phy-ID", "Chip Name"],
    }
    head = columns.get(style, ["NPU ID", "Chip ID", "Chip Logic ID", "Chip Name"])
    rows = [head]
    for at, chip in enumerate(chips):
        known = {
            "NPU ID": chip.npu, "Slot ID": chip.npu + 1, "Chip ID": chip.chip, "Chip Logic ID": chip.logic,
            "Chip Phy-ID": chip.logic,
            "Chip Name": _NAMES[style],
        }  # fmt: skip
        rows.append([str(known[name]) for name in head])
        if style != "950" and (at + 1 == len(chips) or chips[at + 1].npu != chip.npu):
            rows.append(
                [
                    {"NPU ID": str(chip.npu), "Chip ID": str(chip.chip + 1), "Chip Name": "Mcu"}.get(name, "-")
                    for name in head
                ]
            )
    return "".join("\t" + "".join(f"{cell:<31}" for cell in row).rstrip() + "\n" for row in rows)


def process_text(style: str, chips: Sequence[Chip]) -> str:
    """`npu-smi info`: the table of processes, one process on every busy chip."""
    head = "NPU ID " if style == "950" else "NPU     Chip"
    lines = [_RULE, f"| {head:<25} | Process id    | Process name             | Process memory(MB)      |\n", _RULE]
    for chip in chips:
        cell = str(chip.npu) if style == "950" else f"{chip.npu:<7} {chip.chip}"
        busy = f"| {cell:<25} | {4000 + chip.logic:<13} | {'python3.11':<24} | {'1024':<23} |\n"
        lines += [busy if chip.busy else f"| No running processes found in NPU {chip.npu:<61} |\n", _RULE]
    return "".join(lines)


def topo_text(style: str, chips: Sequence[Chip]) -> str:
    """`npu-smi info -t topo`: one row a card, `Phy-ID` rows without affinity for A3."""
    if style == "A3":
        names = [f"Phy-ID{chip.logic}" for chip in chips]
        rows = [[name, *("X" if name == other else "HCCS_SW" for other in names)] for name in names]
        return _matrix([["", *names], *rows])
    cards = {chip.npu: chip.affinity for chip in chips if chip.affinity}
    if not cards:
        return ""
    names = [f"NPU{card}" for card in cards]
    rows = [
        [name, *("X" if name == other else "HCCS" for other in names), cpus]
        for name, cpus in zip(names, cards.values(), strict=True)
    ]
    return (
        _matrix([["", *names, "CPU Affinity"], *rows])
        + "\nLegend:\n\n  X    = Self\n  HCCS = Connection traversing HCCS.\n"
    )


def _matrix(rows: Sequence[Sequence[str]]) -> str:
    return "".join("".join(f"{cell:<11}" for cell in row).rstrip() + "\n" for row in rows)
