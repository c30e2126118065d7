"""The table of `nvidia-smi topo -m`: local CPUs and nodes of GPUs. Pure parsing.

Cells are separated by tabs, with a second tab before the last column; captures that went through a terminal are aligned
with spaces. Rows of network cards have no affinity, and inside containers rows of GPUs may have none either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from homenode.host.topology.accelerators.cells import Problems, number, reported_cpus

_ANSI = re.compile(r"\x1b\[[0-9;]*m")  # the header is underlined
_GAP = re.compile(r" {2,}")
_GPU = re.compile(r"GPU([0-9]{1,5})")
_UNKNOWN = ("", "N/A", "NA", "-")
_NODES = "NUMA Affinity"
_OWN = "GPU NUMA ID"


@dataclass(frozen=True, slots=True)
class NvidiaTopoRow:
    """`cpus` in the order of the list; empty when not told. `nodes`: NUMA Affinity. `memory_node`: the GPU's own
    memory."""

    cpus: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    memory_node: int | None = None


def parse_topo(text: str, problems: Problems) -> dict[int, NvidiaTopoRow]:
    """Rows of GPUs by index. Adds `nvidia_smi_unparseable` for an affinity that is no CPU list; the row stays, without
    it."""
    rows: dict[int, NvidiaTopoRow] = {}
    tail: list[str] | None = None
    relations = 0
    for line in text.splitlines():
        line = _ANSI.sub("", line)
        words = line.split()
        if tail is None:
            if "CPU Affinity" in line:
                columns = [
                    cell.strip() for cell in (line.split("\t") if "\t" in line else _GAP.split(line)) if cell.strip()
                ]
                relations = columns.index("CPU Affinity") if "CPU Affinity" in columns else len(columns)
                tail = columns[relations:]
            continue
        match = _GPU.fullmatch(words[0]) if words else None
        if match and int(match[1]) not in rows:
            rows[int(match[1])] = _row(line, tail, relations, problems)
    return rows


def _row(line: str, tail: Sequence[str], relations: int, problems: Problems) -> NvidiaTopoRow:
    cells = _tail_cells(line, tail, relations)
    text = cells.get("CPU Affinity", "")
    cpus = () if text in _UNKNOWN else reported_cpus(text.replace(" ", ""))
    if cpus is None:
        wanted = "a CPU list such as 0-55,112-167 in the column CPU Affinity"
        message = "the CPU affinity of a GPU cannot be read"
        problems.add(
            "nvidia_smi_unparseable",
            message,
            seen=line,
            wanted=wanted,
            remedy="Run `nvidia-smi topo -m` by hand; sysfs is used instead.",
        )
    nodes = reported_cpus(cells.get(_NODES, ""))  # node lists are written as CPU lists are
    return NvidiaTopoRow(cpus or (), nodes or (), number(cells.get(_OWN, "")))


def _tail_cells(line: str, tail: Sequence[str], relations: int) -> dict[str, str]:
    """The cells after the relations, by column. Where spaces align, an empty cell leaves no trace: what is there must
    fill the row or be the last."""
    if "\t" in line:
        cells = [cell.strip() for cell in line.split("\t")][1 + relations :]
        if len(cells) > len(tail):  # the doubled tab
            cells = [*cells[: len(tail) - 1], next((cell for cell in reversed(cells[len(tail) - 1 :]) if cell), "")]
    else:
        cells = line.split()[1 + relations :]
        if len(cells) == 1 and len(tail) > 1 and cells[0] in _UNKNOWN:
            return {tail[-1]: cells[0]}
    return dict(zip(tail, cells, strict=False))
