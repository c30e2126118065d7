"""Ascend NPUs, as `npu-smi` tells of them: the map of chips, what runs on them, and which CPUs are local."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.errors import PlacementError
from homenode.host.topology.accelerators.ascend_inventory import inventory_without_map, map_replaced
from homenode.host.topology.accelerators.ascend_tables import Info, MapRow, ProcessRow, family_of, parse_info, parse_map
from homenode.host.topology.accelerators.ascend_topo import AscendTopoRow, affinity_of, parse_topo, topo_labels
from homenode.host.topology.accelerators.cells import (
    Problems,
    node_of_cpus,
    node_of_device,
    noted,
    pci_address,
    quoted,
    telling_line,
    tool_error,
)
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Accelerators, Node, PciDevice
from homenode.host.topology.source import CommandResult, Source
from homenode.units import format_count

_MAP = ("npu-smi", "info", "-m")
_INFO = ("npu-smi", "info")
_TOPO = ("npu-smi", "info", "-t", "topo")
_BOARD = ("npu-smi", "info", "-t", "board")


def read_ascend(source: Source, devices: Sequence[PciDevice], nodes: Sequence[Node]) -> Accelerators:
    """The NPUs of the host, ascending by logical number; nothing where there is no npu-smi.

    Where there is no map, the NPUs are those of the topology, else those on which something runs, and a note says so;
    a tool that hangs is not asked again. A missing or failing topology costs a note only, as plans can be made without
    it.
    """
    answer = source.command(_MAP)
    if answer.failure == "timeout":
        return Accelerators(errors=(tool_error(_MAP, answer),))
    problems = Problems()
    notes: list[Finding] = []
    if answer.failure == "failed":
        notes.append(noted(tool_error(_MAP, answer)))
    rows = () if answer.failure == "missing" else parse_map(answer.out, problems)
    if not rows:
        return _without_map(source, answer, problems, notes, devices, nodes)
    info = _read_info(source, problems)
    topo = _read_topo(source, problems, notes)
    return _accelerators(rows, info, topo, problems, notes, devices, nodes)


def _without_map(
    source: Source,
    answer: CommandResult,
    problems: Problems,
    notes: list[Finding],
    devices: Sequence[PciDevice],
    nodes: Sequence[Node],
) -> Accelerators:
    """The NPUs as the other tables name them; the errors of the map where these name none."""
    others = Problems()
    further: list[Finding] = []
    info = _read_info(source, others)
    topo = _read_topo(source, others, further)
    rows, table = inventory_without_map(info, topo_labels(topo))
    if not rows:
        errors = (_of_failed_tool(error, answer) if answer.failure == "failed" else error for error in problems.found)
        return Accelerators(errors=tuple(errors), notes=tuple(notes))
    notes += further
    notes.append(map_replaced(rows, table, quoted(telling_line(f"{answer.out}\n{answer.err}"))))
    return _accelerators(rows, info, topo, others, notes, devices, nodes)


def _of_failed_tool(error: PlacementError, answer: CommandResult) -> PlacementError:
    """The same about a tool that failed: with its exit code, and what it said, on standard error if nowhere else."""
    said = quoted(telling_line(f"{answer.out}\n{answer.err}"))
    return PlacementError(
        error.code,
        error.summary,
        seen=f"exit code {answer.rc}, {said}",
        wanted=error.wanted,
        remedy=error.remedy,
    )


def _accelerators(
    rows: tuple[MapRow, ...],
    info: Info,
    topo: str,
    problems: Problems,
    notes: list[Finding],
    devices: Sequence[PciDevice],
    nodes: Sequence[Node],
) -> Accelerators:
    """The chips of `rows`, with what the other tables say of them."""
    affinity = affinity_of(parse_topo(topo, problems), rows, problems)
    running = _running(info.processes, rows, problems)
    chips = {row.logical: row for row in reversed(rows)}
    family = family_of(rows)
    if family is None:
        notes.append(_family_unknown(rows))
    return Accelerators(
        tuple(_chip(chips[logical], info, affinity, running, devices, nodes) for logical in sorted(chips)),
        family,
        tuple(problems.found),
        tuple(notes),
    )


def board_address(source: Source, chip: Accelerator) -> str | None:
    """The PCI address of an NPU from `npu-smi info -t board`, for where `npu-smi info` does not show it. Costs one call
    of the tool, or two.

    Tools that do not know chips on a card (`-c`) are asked for the card alone, which is its first chip.
    """
    if chip.card is None:
        return None
    card = (*_BOARD, "-i", str(chip.card))
    answer = source.command((*card, "-c", str(chip.chip)))
    address = _board_line(answer.out)
    if address is None and chip.chip == 0 and answer.failure != "timeout":
        address = _board_line(source.command(card).out)
    return address


def _board_line(text: str) -> str | None:
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip().lower() == "pcie bus info" and (address := pci_address(value)):
            return address
    return None


def _read_info(source: Source, problems: Problems) -> Info:
    answer = source.command(_INFO)
    if answer.failure in ("timeout", "failed"):
        problems.found.append(tool_error(_INFO, answer))
    info = parse_info(answer.out, problems)
    if not info.has_tables and not answer.failure and answer.out.strip():
        # Some versions end with exit code 0 after they have said that the driver does not answer.
        problems.add(
            "npu_info_unparseable",
            "`npu-smi info` prints no table of processes",
            seen=telling_line(answer.out),
            wanted="a table with the columns NPU and Process id",
            remedy="Run `npu-smi info` by hand: the driver may not answer. --strategy fair does not need the "
            "processes.",
        )
    return info


def _read_topo(source: Source, problems: Problems, notes: list[Finding]) -> str:
    """Return what `npu-smi info -t topo` prints; nothing where an earlier call has hung."""
    if any(error.code == "tool_timeout" for error in problems.found):
        return ""
    answer = source.command(_TOPO)
    if answer.failure in ("timeout", "failed"):
        notes.append(noted(tool_error(_TOPO, answer)))
    elif answer.out.strip() and "NPU" not in answer.out and "Phy-ID" not in answer.out:
        notes.append(noted(_no_topology(answer.out)))
    return answer.out


def _no_topology(text: str) -> PlacementError:
    line = " ".join(_TOPO)
    return PlacementError(
        "tool_failed",
        f"`{line}` prints no table",
        seen=quoted(telling_line(text)),
        wanted="a row for each NPU",
        remedy=f"Run `{line}` by hand to see what it complains about.",
    )


def _running(processes: Sequence[ProcessRow], rows: tuple[MapRow, ...], problems: Problems) -> dict[int, set[int]]:
    """Process ids by logical number. Adds `npu_unmapped` for processes on a chip that the map does not tell, or does
    not tell apart."""
    by_npu: dict[int, dict[int, int]] = {}
    for row in rows:
        by_npu.setdefault(row.npu, {})[row.chip] = row.logical
    found: dict[int, set[int]] = {}
    for process in processes:
        chips = by_npu.get(process.npu, {})
        if process.chip is None and len(chips) == 1:
            (logical,) = chips.values()
        elif process.chip is not None and process.chip in chips:
            logical = chips[process.chip]
        else:
            problems.add(
                "npu_unmapped",
                "a process runs on a chip whose logical id cannot be told",
                seen=process.line,
                wanted=f"an NPU and chip of `npu-smi info -m`, which has {format_count(len(chips), 'chip')} for NPU "
                f"{process.npu}",
                remedy="Compare `npu-smi info` with `npu-smi info -m`; --strategy fair does not need the processes.",
            )
            continue
        found.setdefault(logical, set()).add(process.pid)
    return found


def _chip(
    row: MapRow,
    info: Info,
    affinity: dict[int, AscendTopoRow],
    running: dict[int, set[int]],
    devices: Sequence[PciDevice],
    nodes: Sequence[Node],
) -> Accelerator:
    address = info.addresses.get((row.npu, row.chip))
    told = affinity.get(row.logical)
    local = told.cpus if told else ()
    node = node_of_cpus(local, nodes)
    return Accelerator(
        kind="npu",
        id=row.logical,
        name=row.name,
        address=address,
        local_cpus=local,
        unreadable_affinity=told.unreadable if told else "",
        node=node_of_device(address, devices, nodes) if node is None else node,
        card=row.npu,
        chip=row.chip,
        physical=row.physical,
        processes=tuple(sorted(running.get(row.logical, ()))),
    )


def _family_unknown(rows: tuple[MapRow, ...]) -> Finding:
    names = ", ".join(sorted({row.name or "no name" for row in rows})[:4])
    message = f"the Ascend device type cannot be told from the chip names: {names}"
    return Finding("warning", "device_type_unknown", message, "Give --device-type (A2, A3, 310P or 950).")
