"""Single facts out of a source's files: numbers, CPU lists, masks. What cannot be understood becomes a note, never an
exception."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.cpuset import parse_cpu_list, parse_cpu_mask
from homenode.errors import UserError
from homenode.host.topology.finding import Finding
from homenode.host.topology.source import Source

_MOST_NOTES = 50  # a damaged recording would otherwise add one for every file
_MOST_DIGITS = 19  # what fits into 63 bits
_REMEDY = (
    "The fact is left out. On a live host this points to a fault of the kernel or the container; a recording can "
    "be made again."
)


class FactReader:
    """Reads single facts through a source. `notes` gathers what was there and made no sense."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.notes: list[Finding] = []

    def note(self, code: str, message: str, remedy: str = _REMEDY) -> None:
        """Add a warning, unless it is there or there are very many already."""
        finding = Finding("warning", code, message, remedy)
        if len(self.notes) < _MOST_NOTES and finding not in self.notes:
            self.notes.append(finding)

    def text(self, path: str) -> str:
        """The file's text; empty when there is none."""
        return self.source.read(path) or ""

    def number(self, path: str) -> int | None:
        """A whole number, decimal or 0x..., perhaps negative; None where the file is missing, empty or says something
        else."""
        text = self.text(path)
        if not text:
            return None
        found = parse_number(text)
        if found is None:
            self.note("fact_unreadable", f"{path}: {text[:40]!r} is no number")
        return found

    def cpus(self, path: str) -> tuple[int, ...] | None:
        """A list such as 0-3,8 (also of nodes); None where the file is missing or says something else. An empty file is
        an empty set."""
        text = self.source.read(path)
        if text is None:
            return None
        try:
            return parse_cpu_list(text)
        except UserError as error:
            self.note("fact_unreadable", f"{path}: {error.message}")
            return None

    def mask(self, path: str) -> tuple[int, ...] | None:
        """A mask of hexadecimal groups such as 00000000,000000ff; None where the file is missing, empty or says
        something else."""
        text = self.text(path)
        if not text:
            return None
        try:
            return parse_cpu_mask(text)
        except UserError as error:
            self.note("fact_unreadable", f"{path}: {error.message}")
            return None

    def cpus_or_mask(self, list_path: str, mask_path: str) -> tuple[int, ...] | None:
        """The set of CPUs that the kernel gives in two forms; older kernels have the mask only."""
        found = self.cpus(list_path)
        return self.mask(mask_path) if found is None else found


def parse_number(text: str) -> int | None:
    """The whole number that `text` is, decimal or 0x...; None for anything else and for what does not fit into 63
    bits."""
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if not digits.isascii() or len(digits) > _MOST_DIGITS:
        return None
    if digits.isdecimal():
        return sign * int(digits)
    try:
        return sign * int(digits[2:], 16) if digits[:2] in ("0x", "0X") and digits[2:].isalnum() else None
    except ValueError:
        return None


def numbered(names: Sequence[str], prefix: str) -> tuple[int, ...]:
    """The numbers of those names that are `prefix` and a number: node0, node8 -> 0, 8; ascending."""
    rests = (name[len(prefix) :] for name in names if name.startswith(prefix))
    return tuple(sorted(int(rest) for rest in rests if rest.isascii() and rest.isdecimal() and len(rest) < 6))
