"""The times at which the phases of a start ended: what `homenode bench start` and the metric
`homenode:start_phase_seconds` show.

Each process marks its own phases with the clock that the kernel counts since the boot, so that the marks of a front and
of its engine can be compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

Mark = tuple[str, float]  # a phase, and when it ended in seconds since the boot

_marks: list[Mark] = []


def mark_phase(name: str) -> None:
    """Note that this phase of this process's start ends now."""
    _marks.append((name, time.clock_gettime(time.CLOCK_BOOTTIME)))


def marked_phases() -> list[Mark]:
    """The phases of this process so far."""
    return list(_marks)


def process_began() -> float | None:
    """Return when this process began, in seconds since the boot, to the kernel's 10 ms; None where /proc does
    not tell.
    """
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return None


def phases_since(began: float, marks: Sequence[Sequence[object]]) -> list[Mark]:
    """The same phases with their ends in seconds since `began`. What is not a mark is left out: marks come from another
    process."""
    return [
        (name, round(end - began, 3)) for name, end in marks if isinstance(name, str) and isinstance(end, float | int)
    ]
