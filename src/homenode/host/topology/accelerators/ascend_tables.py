"""The two tables of `npu-smi info`: chips by number (`info -m`), and addresses and processes (`info`). Pure parsing.

Formats seen in the field, all read here:

- the map: `NPU ID`, `Chip ID`, `Chip Logic ID`, `Chip Name` (A2, 310P), with `Chip Phy-ID` (A3), or `NPU ID`,
  `Slot ID`, `Chip ID`, `Chip Phy-ID`, `Chip Name` (950, where the NPU ID is the logical number); indented or not,
  columns of any width. Rows of a card's controller, named `Mcu` and without a logical number, are passed over.
- the device table: two lines for each chip, `| NPU Name | Health |...` and `| Chip [Phy-ID] | Bus-Id |...`; three
  columns.
- the process table: `| NPU Chip | Process id |...` with four or five columns, or `| NPU ID | Process id |...` (950).

Headers of the last two may be in another language than English; both begin with the word NPU, and the number of columns
tells which it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from homenode.host.topology.accelerators.cells import Problems, label, number, pci_address, quoted, telling_line

_GAP = re.compile(r"\t[\t ]*| {2,}[\t ]*")
_NO_NUMBER = ("-", "NA", "N/A")
LOGICAL_LIMIT = 1 << 16
_LEAST_PROCESS_COLUMNS = 4  # of the process table; the device table has three
_MAP = "a table of `npu-smi info -m` with the columns NPU ID, Chip ID and Chip Logic ID"
_MAP_REMEDY = "Run `npu-smi info -m` by hand: the driver may be missing from this container, or its format may be new."


@dataclass(frozen=True, slots=True)
class MapRow:
    """One chip. `logical` is what ASCEND_RT_VISIBLE_DEVICES means; `physical` is None where the map has no such
    column."""

    npu: int
    chip: int
    logical: int
    physical: int | None
    name: str


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A process on a chip; `chip` is None where the table names the NPU only. `pid` is 0 where the tool does not show
    it. `line`: for messages."""

    npu: int
    chip: int | None
    pid: int
    line: str


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A chip of the device table; `physical` is None where the table has no such column."""

    npu: int
    chip: int
    physical: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Info:
    """`addresses`: PCI address by NPU and chip number. `has_tables`: whether either table was there. `devices`: the
    rows of the device table."""

    addresses: dict[tuple[int, int], str]
    processes: tuple[ProcessRow, ...]
    has_tables: bool = True
    devices: tuple[DeviceRow, ...] = ()


def parse_map(text: str, problems: Problems) -> tuple[MapRow, ...]:
    """The rows of `npu-smi info -m`. Adds `npu_map_empty`, `npu_map_unparseable` and `npu_map_duplicate` (of which the
    first row is kept).

    Where there is no column of logical numbers, several chips of one NPU share its number: they stay separate rows.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        problems.add("npu_map_empty", "npu-smi prints no map of NPUs", seen="", wanted=_MAP, remedy=_MAP_REMEDY)
        return ()
    columns, start = _map_header(lines)
    if not columns:
        problems.add(
            "npu_map_unparseable",
            "npu-smi prints no map of NPUs: there is no column NPU ID",
            seen=telling_line(text),
            wanted=_MAP,
            remedy=_MAP_REMEDY,
        )
        return ()
    rows: dict[tuple[int, int | None], MapRow] = {}
    has_logical = "chip logic id" in columns
    before = len(problems.found)
    for line in lines[start:]:
        row = None if _is_remark(line, columns) else _map_row(line, columns, problems)
        if row is None:
            continue
        key = (row.logical, None if has_logical else row.chip)
        if key in rows:
            message = f"the map of NPUs has the logical id {row.logical} twice"
            problems.add(
                "npu_map_duplicate", message, seen=line, wanted="one row for each logical id", remedy=_MAP_REMEDY
            )
        rows.setdefault(key, row)
    if not rows and len(problems.found) == before:
        problems.add(
            "npu_map_empty",
            "the map of NPUs has a header and no chips",
            seen=telling_line("\n".join(lines[start - 1 :])),
            wanted=_MAP,
            remedy=_MAP_REMEDY,
        )
    return tuple(rows.values())


def _map_header(lines: list[str]) -> tuple[list[str], int]:
    """Column names in lower case, and the number of the first line after them; warnings of the driver may come
    first."""
    for at, line in enumerate(lines):
        if "npu id" in line.lower():
            columns = _GAP.split(line.strip().lower())
            if "npu id" in columns:
                return columns, at + 1
    return [], 0


def _is_remark(line: str, columns: list[str]) -> bool:
    """Return whether a line is none of the table's: the driver's logger writes between rows, too. A row has a number or
    a dash before its name.
    """
    return not any(word.isdecimal() or word in _NO_NUMBER for word in line.split()[: len(columns) - 1])


def _map_row(line: str, columns: list[str], problems: Problems) -> MapRow | None:
    """One chip; None for a controller and, with a problem added, for what is no row. A name, the last column, may hold
    spaces."""
    cells = dict(zip(columns, line.split(None, len(columns) - 1), strict=False))
    name = label(cells.get("chip name", ""))
    npu_text = cells["npu id"]
    logical_text = cells.get("chip logic id", "" if "chip logic id" in columns else npu_text)
    if name.lower() == "mcu" or logical_text in _NO_NUMBER:
        return None
    npu, logical = number(npu_text), number(logical_text)
    chip = number(cells.get("chip id", "")) if "chip id" in columns else 0
    if npu is None or chip is None or logical is None or logical >= LOGICAL_LIMIT:
        problems.add(
            "npu_map_unparseable", "a row of the map of NPUs cannot be read", seen=line, wanted=_MAP, remedy=_MAP_REMEDY
        )
        return None
    return MapRow(npu, chip, logical, number(cells.get("chip phy-id", "")), name)


def parse_info(text: str, problems: Problems) -> Info:
    """Both tables of `npu-smi info`. Adds `npu_unmapped` for a process row that names no device."""
    addresses: dict[tuple[int, int], str] = {}
    devices: list[DeviceRow] = []
    processes: list[ProcessRow] = []
    above: list[str] = []  # words of the line before: the device table has two lines for each chip
    by_chip: bool | None = None  # None above the process table
    for line in text.splitlines():
        cells = _cells(line)
        if len(cells) < 2:
            continue
        words = cells[0].split(None, 2)
        if words[:1] == ["NPU"]:
            by_chip = _names_chips(words) if _heads_processes(cells) else None
        elif by_chip is not None:
            row = _process(line, cells, by_chip, processes, problems)
            if row is not None:
                processes.append(row)
        elif (address := pci_address(cells[1])) is not None:
            device = _device(above, words)
            if device is not None:
                addresses.setdefault((device.npu, device.chip), address)
                devices.append(device)
        else:
            above = words
    return Info(addresses, tuple(processes), by_chip is not None or bool(addresses), tuple(devices))


def _heads_processes(cells: list[str]) -> bool:
    """Return whether a header that begins with NPU is that of the process table: by its columns, or by its words where
    there are fewer.
    """
    return len(cells) >= _LEAST_PROCESS_COLUMNS or "process id" in cells[1].lower()


def _names_chips(header: list[str]) -> bool:
    """Return whether the first column of the process table has a card and a chip, as `NPU Chip` says in any language;
    `NPU ID` is one number.
    """
    return len(header) > 1 and header[1].lower() != "id"


def _device(above: list[str], words: list[str]) -> DeviceRow | None:
    """The chip of two lines of the device table: NPU and name above, chip and physical number below."""
    npu, chip = (number(line[0]) if line else None for line in (above, words))
    if npu is None or chip is None:
        return None
    physical = number(words[1]) if len(words) > 1 else None
    return DeviceRow(npu, chip, physical, label(" ".join(above[1:])))


def _cells(line: str) -> list[str]:
    line = line.strip()
    return [cell.strip() for cell in line[1:].removesuffix("|").split("|", 8)] if line.startswith("|") else []


def _process(
    line: str, cells: list[str], by_chip: bool, above: list[ProcessRow], problems: Problems
) -> ProcessRow | None:
    """One process; None for a line that goes on with the name of the one above, and, with a problem added, for what is
    no row."""
    pid = number(cells[1])
    words = cells[0].split(None, 2)
    if not words:
        return ProcessRow(above[-1].npu, above[-1].chip, pid, quoted(line)) if pid is not None and above else None
    npu = number(words[0])
    chip = number(words[1]) if by_chip and len(words) > 1 else None
    if npu is None or (chip is None and by_chip and len(words) > 1):
        message = "a row of the process table names no NPU"
        problems.add(
            "npu_unmapped",
            message,
            seen=line,
            wanted="numbers of an NPU and a chip",
            remedy="Run `npu-smi info` by hand and report the row.",
        )
        return None
    return ProcessRow(npu, chip, pid or 0, quoted(line))


def family_of(rows: tuple[MapRow, ...]) -> str | None:
    """The Ascend family that the chips' names tell: "A2", "A3", "310P" or "950"; None when they tell none, or more than
    one.

    `Ascend 910B...` is A2; `910_93...` and `910C` are A3, and so is a bare `Ascend910` whose map has physical numbers
    or two chips to a card (the first 910, which has neither, is no A3); `310P...` is 310P; `950...` and `910_95...`,
    its early name, are 950.
    """
    dual = len({row.npu for row in rows}) < len(rows)
    families = {_family(row, dual) for row in rows}
    return families.pop() if len(families) == 1 else None


def _family(row: MapRow, dual: bool) -> str | None:
    name = row.name.lower().replace("ascend", "").strip()
    for start, family in (
        ("910b", "A2"),
        ("910_93", "A3"),
        ("910c", "A3"),
        ("310p", "310P"),
        ("950", "950"),
        ("910_95", "950"),
    ):
        if name.startswith(start):
            return family
    return "A3" if name == "910" and (dual or row.physical is not None) else None
