"""/proc/interrupts: which interrupts there are, whose they are, and the names of their handlers
(proc_interrupts(5))."""

from __future__ import annotations

import re
from collections.abc import Iterator

from homenode.host.topology.facts import FactReader
from homenode.host.topology.host import Interrupt

_FILE = "/proc/interrupts"
# After the counters: the chip, its own number of the interrupt, the trigger ("-edge" behind the number, or "Level" as a
# word), the handlers. A chip's name may hold single spaces; it is padded on the left, so that two spaces never are
# inside it.
_WITH_NUMBER = re.compile(r"(\S+(?: \S+)*?)\s+\d+(?:-\S*)?(?:\s+(?:Level|Edge|None)(?!\S))?(?:\s+(.*))?", re.DOTALL)
_WITHOUT_NUMBER = re.compile(r"(\S+(?: \S+)*?)(?:\s{2,}(.*))?", re.DOTALL)


def read_interrupts(reader: FactReader) -> tuple[Interrupt, ...]:
    """The numbered interrupts in the kernel's order. Lines of other kinds (NMI, ERR, ...) and of no sense are left
    out."""
    return tuple(parse_interrupts(reader.text(_FILE)))


def parse_interrupts(text: str) -> Iterator[Interrupt]:
    """Numbered lines of the text of /proc/interrupts, which begins with a header of the online CPUs."""
    header, _, rest = text.partition("\n")
    columns = len(header.split())
    for line in rest.splitlines():
        number, colon, counted = line.partition(":")
        number = number.strip()
        if colon and number.isascii() and number.isdecimal() and len(number) < 10:
            tail = _after_counters(counted, columns)
            if tail:
                yield _interrupt(int(number), tail)


def _after_counters(counted: str, columns: int) -> str | None:
    """Return what follows the counters; None when there are fewer counters than the header has CPUs."""
    words = counted.split(None, columns)
    return words[columns].strip() if len(words) > columns and "".join(words[:columns]).isdecimal() else None


def _interrupt(number: int, tail: str) -> Interrupt:
    match = _WITH_NUMBER.fullmatch(tail) or _WITHOUT_NUMBER.fullmatch(tail)
    chip, actions = (match[1], match[2]) if match else (tail, "")
    return Interrupt(
        number, chip, tuple(name for name in (part.strip() for part in (actions or "").split(", ")) if name)
    )
