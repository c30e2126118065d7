"""Whether readings of the machine are of one placement, and texts without its folders."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from homenode.bench.machine.fingerprint import Fingerprint, moved


def moved_between(readings: Iterable[dict[str, Any]]) -> str | None:
    """Why readings taken one after the other (`round_trip_ns` and `read_gb_s` of each) cannot be of one placement; None
    when they can."""
    prints = [Fingerprint.from_json(reading) for reading in readings]
    return next((reason for a, b in pairwise(prints) if (reason := moved(a, b))), None)


def without_folders(text: str) -> str:
    """With the names of files in place of absolute paths: where they lie here says nothing to others."""
    return re.sub(r"(?<![\w.])/(?:[^\s\"'/]+/)+", "", text)
