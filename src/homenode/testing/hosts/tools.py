"""The texts that the vendors' tools of a made-up host print: nvidia-smi and npu-smi, with nothing running."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from homenode.cpuset import format_cpu_list
from homenode.host.topology.source import CommandResult
from homenode.testing.hosts.devices import Device, gpus_of, npus_of
from homenode.testing.hosts.shape import Shape

_MAP_COLUMN = 31
_CELLS = (27, 15, 52)  # widths of the columns of `npu-smi info`
_CHIP_NAMES = {"A2": "910B3", "A3": "Ascend910", "310P": "310P3", "950": "Ascend950"}
_LEGEND = "\n\nLegend:\n\n  X    = Self\n  HCCS = Connection traversing HCCS.\n  NA   = Unknown relationship.\n"


def tool_outputs(shape: Shape) -> dict[str, CommandResult]:
    """Outputs by command line; nothing for a tool whose devices the host does not have."""
    local = _local_cpus(shape)
    texts: dict[str, str] = {}
    if shape.gpus[1] == "nvidia" and (gpus := gpus_of(shape)):
        texts["nvidia-smi --query-gpu=index,uuid,pci.bus_id,name --format=csv,noheader"] = _gpu_list(gpus)
        texts["nvidia-smi --query-compute-apps=gpu_uuid,pid --format=csv,noheader"] = ""
        texts["nvidia-smi topo -m"] = _gpu_topology(gpus, local)
    if npus := npus_of(shape):
        family = shape.npus[1]
        texts["npu-smi info -m"] = _npu_map(npus, family)
        texts["npu-smi info"] = _npu_info(npus, family)
        texts["npu-smi info -t topo"] = _npu_topology(npus, family, local)
        for npu in npus:
            board = (
                f"\tNPU ID                         : {npu.card}\n\tPCIe Bus Info                  : "
                f"{npu.address.upper()}\n"
            )
            texts[f"npu-smi info -t board -i {npu.card} -c {npu.chip}"] = board
    return {words: CommandResult(text) for words, text in texts.items()}


def _local_cpus(shape: Shape) -> dict[int | None, str]:
    """Online CPUs by node, as a list; under None those of the whole host."""
    found: dict[int | None, list[int]] = {None: []}
    for core in shape.layout:
        online = shape.online.intersection(core.cpus)
        found[None].extend(online)
        if core.node is not None:
            found.setdefault(core.node, []).extend(online)
    return {node: format_cpu_list(cpus) for node, cpus in found.items()}


def _gpu_list(gpus: Sequence[Device]) -> str:
    lines = (
        f"{gpu.place}, GPU-00000000-0000-0000-0000-{gpu.place:012x}, 0000{gpu.address.upper()}, NVIDIA H100 80GB HBM3"
        for gpu in gpus
    )
    return "\n".join(lines)


def _gpu_topology(gpus: Sequence[Device], local: dict[int | None, str]) -> str:
    """Tabs between the cells, and two before the last, as nvidia-smi writes them."""
    rows = ["\t" + "\t".join([*(f"GPU{gpu.place}" for gpu in gpus), "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for gpu in gpus:
        relations = "\t".join(" X " if other is gpu else "NV18" for other in gpus)
        node = "N/A" if gpu.node is None else gpu.node
        rows.append(f"GPU{gpu.place}\t{relations}\t{local[gpu.node]}\t{node}\t\tN/A")
    return "\n".join(
        [*rows, "", "Legend:", "", "  X    = Self", "  NV#  = Connection traversing a bonded set of # NVLinks"]
    )


def _npu_map(npus: Sequence[Device], family: str) -> str:
    """`npu-smi info -m`. Every card but the 950 has a controller without a logical number after its chips."""
    if family == "950":
        rows = [("NPU ID", "Slot ID", "Chip ID", "Chip Phy-ID", "Chip Name")]
        rows += [(str(npu.card), str(npu.card), str(npu.chip), str(npu.place), _CHIP_NAMES[family]) for npu in npus]
        return _columns(rows)
    physical = family == "A3"
    rows_of: list[tuple[str, ...]] = [
        ("NPU ID", "Chip ID", "Chip Logic ID", *(["Chip Phy-ID"] if physical else []), "Chip Name")
    ]
    for npu in npus:
        last = npu is npus[-1] or npus[npu.place + 1].card != npu.card
        rows_of.append(
            (str(npu.card), str(npu.chip), str(npu.place), *([str(npu.place)] if physical else []), _CHIP_NAMES[family])
        )
        if last:
            rows_of.append((str(npu.card), str(npu.chip + 1), "-", *(["-"] if physical else []), "Mcu"))
    return _columns(rows_of)


def _columns(rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join("\t" + "".join(f"{cell:<{_MAP_COLUMN}}" for cell in row).rstrip() for row in rows)


def _npu_info(npus: Sequence[Device], family: str) -> str:
    """`npu-smi info`: the table of chips, two lines each, and the table of processes, on which nobody is."""
    second = {"A3": "Chip  Phy-ID", "310P": "Chip  Device"}.get(family, "Chip")
    rule = "+" + "+".join("=" * width for width in _CELLS) + "+"
    lines = [
        rule,
        _cells("NPU   Name", "Health", "Power(W)    Temp(C)           Hugepages-Usage(page)"),
        _cells(second, "Bus-Id", "AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)"),
    ]
    for npu in npus:
        lines += [rule, _cells(f"{npu.card:<6}{_CHIP_NAMES[family]}", "OK", "90.0        40                0    / 0")]
        lines.append(
            _cells(
                f"{npu.chip:<6}{npu.place if second != 'Chip' else ''}",
                npu.address.upper(),
                "0           0    / 0          3000 / 65536",
            )
        )
    table = _cells(
        "NPU ID" if family == "950" else "NPU     Chip", "Process id", "Process name             | Process memory(MB)"
    )
    lines += [rule, table, rule]
    for card in dict.fromkeys(npu.card for npu in npus):
        lines += [f"| {f'No running processes found in NPU {card}':<{sum(_CELLS) + 1}}|", rule]
    return "\n".join(lines)


def _cells(*cells: str) -> str:
    return "|" + "|".join(f" {cell:<{width - 1}}" for cell, width in zip(cells, _CELLS, strict=True)) + "|"


def _npu_topology(npus: Sequence[Device], family: str, local: dict[int | None, str]) -> str:
    """`npu-smi info -t topo`: a row for each card with its CPUs; for an A3 one for each chip, without CPUs."""
    names = {f"Phy-ID{npu.place}" if family == "A3" else f"NPU{npu.card}": npu for npu in npus}
    link, affinity = ("HCCS_SW", "") if family == "A3" else ("HCCS", "CPU Affinity")
    width = max(map(len, names)) + 4
    lines = ["\t" + _padded(names, width) + affinity]
    for name, npu in names.items():
        relations = ("X" if other == name else link for other in names)
        lines.append(_padded([name, *relations], width) + (local[npu.node] if affinity else ""))
    return "\n".join(lines) + _LEGEND


def _padded(cells: Iterable[str], width: int) -> str:
    return "".join(f"{cell:<{width}}" for cell in cells)
