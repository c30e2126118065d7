"""The runner of measurements: sides in turns, figures with intervals, and records that say where they come from.

Two sides are asked in turns (A B B A ...), so that whatever changes on the machine meanwhile changes for both, and
ratios are taken pair by pair. `keep_record` writes one JSON object: the machine, the versions of all who were measured,
what was asked for, and what was found.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from homenode import __version__

T = TypeVar("T")
_ROOT = Path(__file__).resolve().parents[3]  # of a checkout


class Interval(NamedTuple):
    """A median with its 95 % interval by order statistics: all values where there are fewer than six."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        """Return that of at least one value."""
        ranked, n = sorted(values), len(values)
        reach = 1.96 * n**0.5 / 2
        low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach))
        return cls(statistics.median(ranked), ranked[low], ranked[high])

    @classmethod
    def of_ratios(cls, above: Sequence[float], below: Sequence[float]) -> Interval:
        """Return that of quotients, pair by pair."""
        return cls.of([a / b for a, b in zip(above, below, strict=True)])

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.low:.3f} to {self.high:.3f})"

    def to_json(self) -> dict[str, float]:
        """Return its figures by name."""
        return self._asdict()


def in_turns(sides: Sequence[T], count: int) -> Iterator[tuple[int, Sequence[T]]]:
    """So many turns of all sides, each with its number; who begins changes from one to the next."""
    for number in range(count):
        yield number, sides if number % 2 == 0 else sides[::-1]


def machine() -> dict[str, Any]:
    """Processor, CPUs this process may use, kernel, and whether malloc's memory gets huge pages unasked."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    pages = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", pages.read_text(encoding="utf-8")) if pages.exists() else None
    return {
        "processor": found[1] if found else platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "transparent_hugepage": chosen[1] if chosen else "unknown",
    }


def own_version() -> str:
    """The package's version and, in a checkout, its commit."""
    if not (_ROOT / ".git").exists():
        return __version__
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return f"{__version__} ({done.stdout.strip()})" if done.returncode == 0 else __version__


def record(peers: Mapping[str, str] | None = None, **found: Any) -> dict[str, Any]:
    """Return what is kept of a measurement. `peers`: versions of others that were measured, by name."""
    return {"machine": machine(), "versions": {"homenode": own_version(), **(peers or {})}, **found}


def keep_record(path: Path | None, peers: Mapping[str, str] | None = None, **found: Any) -> None:
    """Write the record to a file, if there is to be one; it is whole at any time."""
    if path is None:
        return
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(record(peers, **found), indent=1) + "\n", encoding="utf-8")
    fresh.replace(path)
