"""What a table has to say about where its figures come from."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

from homenode import __version__
from homenode.bench.machine.fingerprint import Fingerprint, moved

_ROOT = Path(__file__).resolve().parent.parent


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
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return f"{__version__} ({done.stdout.strip()})" if done.returncode == 0 else __version__


def moved_between(readings: Iterable[dict[str, Any]]) -> str | None:
    """Why readings taken one after the other (`round_trip_ns` and `read_gb_s` of each) cannot be of one placement; None
    when they can."""
    prints = [Fingerprint.from_json(reading) for reading in readings]
    return next((reason for a, b in pairwise(prints) if (reason := moved(a, b))), None)


def without_folders(text: str) -> str:
    """With the names of files in place of absolute paths: where they lie here says nothing to others."""
    return re.sub(r"(?<![\w.])/(?:[^\s\"'/]+/)+", "", text)
