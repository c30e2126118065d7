"""The cells of vendors' tables: numbers, CPU lists, PCI addresses. Bounded, and `None` for whatever they are not."""

from __future__ import annotations

import re
from collections.abc import Sequence

from homenode.errors import PlacementError
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Node, PciDevice
from homenode.host.topology.nodes import tells_place
from homenode.host.topology.source import CommandResult

CPU_LIMIT = 1 << 16  # no machine has more logical CPUs
_MOST_PROBLEMS = 32  # a tool that prints megabytes of junk has one fault, not a million
_MOST_QUOTED = 120  # characters
_MOST_LOOKED_AT = 1 << 16  # characters of either end of an output that are searched for what went wrong

_CPU_LIST = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*")
# Failures of getting or setting a log level, and lines that call themselves less than an error: they come before every
# table of some versions.
_REMARK = re.compile(r"log_?level|\bwarn(?:ing)?\b|\b(?:info|debug|notice)\b\s*[]:]", re.IGNORECASE)
_RESULT = re.compile(r"\b(?:ret|return|returned|result|error code|errno)\b\s*(?:is|=|:|code)?\s*-?[0-9]", re.IGNORECASE)
_FAILURE = re.compile(
    r"fail|error|cannot|can't|could ?n[o']t|unable|denied|not (?:permitted|found|supported|available)|does not|no "
    r"such|mismatch|invalid|is lost",
    re.IGNORECASE,
)
_PCI_ADDRESS = re.compile(r"(?:([0-9A-Fa-f]{4,8}):)?([0-9A-Fa-f]{2}):([0-9A-Fa-f]{2})\.([0-7])")


class Problems:
    """Gathers what could not be understood, so that one bad row does not lose the good ones. Keeps the first few
    only."""

    def __init__(self) -> None:
        self.found: list[PlacementError] = []

    def add(self, code: str, message: str, *, seen: str, wanted: str, remedy: str) -> None:
        """Remember one problem; `seen` is a line of the tool's output and is quoted."""
        if len(self.found) < _MOST_PROBLEMS:
            self.found.append(PlacementError(code, message, seen=quoted(seen), wanted=wanted, remedy=remedy))


def number(text: str) -> int | None:
    """A decimal number of at most nine ASCII digits."""
    return int(text) if 0 < len(text) <= 9 and text.isascii() and text.isdigit() else None


def reported_cpus(text: str) -> tuple[int, ...] | None:
    """CPUs of a list such as `144-167,0-3`, in the order of the list and without repeats."""
    if not _CPU_LIST.fullmatch(text):
        return None
    cpus: dict[int, None] = {}
    total = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        total += high - low + 1
        if high < low or high >= CPU_LIMIT or total > CPU_LIMIT:
            return None
        cpus.update(dict.fromkeys(range(low, high + 1)))
    return tuple(cpus)


def pci_address(text: str) -> str | None:
    """The kernel's form, `0000:c1:00.0`, of an address in upper case or with a domain of eight digits."""
    match = _PCI_ADDRESS.fullmatch(text.strip())
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}.{match[4]}".lower() if match else None


def pci_order(address: str) -> tuple[int, str]:
    """Sorts addresses as the bus counts them: domains of five digits come after those of four."""
    domain, _, rest = address.partition(":")
    return len(domain), f"{domain}:{rest}"


def label(text: str) -> str:
    """`text` fit for a terminal: cut at 120 characters, with control characters escaped."""
    text = text.strip()
    cut = text if len(text) <= _MOST_QUOTED else text[: _MOST_QUOTED - 3] + "..."
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in cut)


def quoted(line: str) -> str:
    """A line of a tool's output for a message."""
    return label(line) or "nothing"


def telling_line(text: str) -> str:
    """The line of a tool's output that says what is wrong: vendors' tools print lines of their loggers first, and rows
    of tables around it.

    Of the lines that speak most of a failure the last one, as a tool ends with what it failed by; the first line where
    none does.
    """
    ends = text if len(text) <= 2 * _MOST_LOOKED_AT else f"{text[:_MOST_LOOKED_AT]}\n{text[-_MOST_LOOKED_AT:]}"
    lines = [line for line in ends.splitlines() if line.strip()]
    weights = [_weight(line) for line in lines]
    most = max(weights, default=0)
    if most <= 0:
        return next((line for line, weight in zip(lines, weights, strict=True) if weight == most), "")
    return next(line for line, weight in zip(reversed(lines), reversed(weights), strict=True) if weight == most)


def _weight(line: str) -> int:
    """Return how much a line tells of a failure: below 0 for a logger's remark, 0 for anything else."""
    if _REMARK.search(line):
        return -1
    return 2 if _RESULT.search(line) else 1 if _FAILURE.search(line) else 0


def node_of_cpus(cpus: Sequence[int], nodes: Sequence[Node]) -> int | None:
    """The node on which most of `cpus` lie, the lowest of equals; None when they lie on none, or on all alike: see
    `tells_place`.
    """
    wanted = set(cpus)
    shares = [(len(wanted.intersection(node.cpus)), -node.id) for node in nodes]
    share, negative = max(shares, default=(0, 0))
    return -negative if share and tells_place(cpus, nodes) else None


def node_of_device(address: str | None, devices: Sequence[PciDevice], nodes: Sequence[Node]) -> int | None:
    """The node the firmware gives for the PCI function, if that node has CPUs."""
    node = next((device.node for device in devices if device.address == address), None)
    return node if node is not None and any(other.id == node and other.cpus for other in nodes) else None


def tool_error(words: Sequence[str], result: CommandResult) -> PlacementError:
    """Return what to say of a vendor's tool that hung (`tool_timeout`) or ended with a failure (`tool_failed`)."""
    line = " ".join(words)
    if result.failure == "timeout":
        return PlacementError(
            "tool_timeout",
            f"`{line}` did not answer in time and was ended",
            seen="no answer",
            wanted="an answer within the deadline",
            remedy=f"Run `{line}` by hand: a device or its driver may hang.",
        )
    return PlacementError(
        "tool_failed",
        f"`{line}` failed with exit code {result.rc}",
        seen=quoted(telling_line(f"{result.out}\n{result.err}")),
        wanted="exit code 0",
        remedy=f"Run `{line}` by hand to see what it complains about.",
    )


def noted(error: PlacementError) -> Finding:
    """The same as a warning: for facts that a plan can do without."""
    return Finding("warning", error.code, f"{error.summary} (seen: {error.seen})", error.remedy)
