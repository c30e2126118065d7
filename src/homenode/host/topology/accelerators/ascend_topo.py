"""The table of `npu-smi info -t topo`: which CPUs the firmware calls local to an NPU. Pure parsing and matching.

Rows are matched to chips by the number in their label. What it counts differs between products and versions, and
containers renumber:

- `Phy-ID<n>` (A3): the physical number, where the map has that column; else the logical one.
- `NPU<n>`: the NPU ID, the logical or the physical number. The reading is taken, for the whole table, that gives rows
  to most chips, then the one that explains most rows, then in the order just named. So ids such as 32768 (310P) are NPU
  IDs and both chips of a card share the row, while the rows NPU0 to NPU15 over eight cards of two chips are logical
  numbers.

Rows that belong to no chip of the map are those of devices hidden from this container, and are passed over. A row says
something of its own device only: one that cannot be read, or says nothing, costs no other device its affinity.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from homenode.errors import PlacementError
from homenode.host.topology.accelerators.ascend_tables import MapRow
from homenode.host.topology.accelerators.cells import Problems, quoted, reported_cpus

_LABEL = re.compile(r"(NPU|Phy-ID)([0-9]{1,9})")
_COLUMN = re.compile(r"(?:NPU|Phy-ID|NIC)[0-9]+")
_SPACED_COMMA = re.compile(r", +")
_UNKNOWN = ("", "NA", "N/A", "-")
_LIST = "a CPU list such as 0-23 in the column CPU Affinity"
_REMEDY = "Run `npu-smi info -t topo` by hand; --strategy global-slice and --strategy fair do without it."


@dataclass(frozen=True, slots=True)
class AscendTopoRow:
    """`physical`: whether the label says Phy-ID. `cpus`: in the order of the list. `unreadable`: the line, where its
    affinity is no CPU list.
    """

    physical: bool
    number: int
    cpus: tuple[int, ...]
    unreadable: str = ""


def parse_topo(text: str, problems: Problems) -> tuple[AscendTopoRow, ...]:
    """Rows whose affinity is told; none when no header promises that column. Cells that are blank or say NA tell
    nothing.

    Adds `topo_row_unparseable` for a cell that is something else than a CPU list; that row comes back as unreadable.
    """
    rows: list[AscendTopoRow] = []
    at: int | None = None  # the word that is the affinity; None when none was promised
    last = False  # whether nothing may come after it
    for line in text.splitlines():
        words = _SPACED_COMMA.sub(",", line).split()
        if not words or not _COLUMN.fullmatch(words[0]):
            continue
        if _is_header(words):
            at, last = _affinity_column(words), _is_last_column(words)
            continue
        label = _LABEL.fullmatch(words[0])
        if at is None or not label:
            continue
        cell = " ".join(words[at:] if last else words[at : at + 1])
        # A relation is blank, which leaves no trace: no relation begins with a digit.
        if last and not cell and words[-1][0].isdigit():
            cell = words[-1]
        if cell in _UNKNOWN:
            continue
        cpus = reported_cpus(cell)
        if cpus is None:
            _broken(line, problems)
        rows.append(AscendTopoRow(label[1] == "Phy-ID", int(label[2]), cpus or (), "" if cpus else quoted(line)))
    return tuple(rows)


def topo_labels(text: str) -> tuple[int, ...]:
    """Numbers of the NPUs that have a row, in the order of the table, whether their affinity is told or not."""
    rows = (line.split() for line in text.splitlines())
    found = (_LABEL.fullmatch(words[0]) for words in rows if words and not _is_header(words))
    return tuple(dict.fromkeys(int(label[2]) for label in found if label))


def _is_header(words: Sequence[str]) -> bool:
    """A header names columns only; a row has relations such as X, HCCS or SYS after its label."""
    relations = sum(_COLUMN.fullmatch(word) is not None for word in words)
    return relations == len(words) or (words[relations].startswith("CPU") and "X" not in words)


def _affinity_column(header: Sequence[str]) -> int | None:
    """The place of the affinity among the words of a row, whose first word is its label.

    The column is called CPU Affinity, in any language: one word or two, of which the first begins with CPU.
    """
    relations = sum(_COLUMN.fullmatch(word) is not None for word in header)
    return 1 + relations if "".join(header[relations : relations + 1]).startswith("CPU") else None


def _is_last_column(header: Sequence[str]) -> bool:
    """Return whether no column comes after the affinity."""
    named = [word for word in header if not _COLUMN.fullmatch(word)]
    return len(named) == (2 if named[:1] == ["CPU"] else 1)


def _broken(line: str, problems: Problems) -> None:
    message = "a row of the NPU topology promises a CPU affinity and has none that can be read"
    problems.add("topo_row_unparseable", message, seen=line, wanted=_LIST, remedy=_REMEDY)


def affinity_of(rows: Sequence[AscendTopoRow], chips: Sequence[MapRow], problems: Problems) -> dict[int, AscendTopoRow]:
    """Rows by logical number, by the rule at the top of this module. Two unlike rows for one label add
    `topo_row_unparseable`, and neither counts.
    """
    found: dict[int, AscendTopoRow] = {}
    for physical in (True, False):
        table: dict[int, AscendTopoRow] = {}
        for row in rows:
            if row.physical != physical:
                continue
            known = table.setdefault(row.number, row)
            if known.cpus != row.cpus and not known.unreadable:
                line = f"{'Phy-ID' if physical else 'NPU'}{row.number}: two unlike rows"
                _broken(line, problems)
                table[row.number] = AscendTopoRow(physical, row.number, (), line)
        reading = _reading(table, chips, physical)
        for chip in chips:
            key = reading(chip)
            if key is not None and key in table:
                found.setdefault(chip.logical, table[key])
    return found


def unreadable_affinity(device: int, line: str) -> PlacementError:
    """The refusal of a plan for an NPU whose row of the topology, `line`, cannot be read."""
    return PlacementError(
        "topo_row_unparseable",
        f"the CPU affinity of NPU {device} cannot be read",
        seen=line,
        wanted=_LIST,
        remedy=_REMEDY,
    )


def _reading(numbers: Iterable[int], chips: Sequence[MapRow], physical: bool) -> Callable[[MapRow], int | None]:
    """Return what the numbers of labels count."""
    if physical:
        return _physical if any(chip.physical is not None for chip in chips) else _logical
    labels = set(numbers)

    def fit(reading: Callable[[MapRow], int | None]) -> tuple[int, int]:
        meant = [key for chip in chips if (key := reading(chip)) in labels]
        return len(meant), len(set(meant))

    return max((_npu, _logical, _physical), key=fit)


def _npu(chip: MapRow) -> int | None:
    return chip.npu


def _logical(chip: MapRow) -> int | None:
    return chip.logical


def _physical(chip: MapRow) -> int | None:
    return chip.physical
