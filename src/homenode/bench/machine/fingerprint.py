"""The real places of the CPUs under us: told from the time threads take to answer each other, and from how fast they
read together.

The host of a virtual machine moves its CPUs between caches and memory controllers without saying so. On a machine with
two CPUs and several last-level caches, two threads answered each other in 35 to 40 ns and read 36 to 41 GB/s while they
shared one, 280 to 300 ns and 65 to 70 GB/s while they did not, and it changed within minutes. Two runs may be compared
only if this was the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

# Above the noise in the best of many bursts (a few per cent, tens of them for reading where other programs read too),
# below what a move changes: factors of 7 and 1.7.
_ROUND_TRIP_FACTOR = 2.0
_READ_FACTOR = 1.5


@dataclass(frozen=True)
class Fingerprint:
    """`round_trips`: nanoseconds from the first thread to each other one and back (empty for one thread). `read`: bytes
    a second of all."""

    round_trips: tuple[float, ...]
    read: float

    def to_json(self) -> dict[str, object]:
        """Rounded, under names with units."""
        return {"round_trip_ns": [round(t, 1) for t in self.round_trips], "read_gb_s": round(self.read / 1e9, 2)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return what `to_json` made."""
        return cls(tuple(value["round_trip_ns"]), value["read_gb_s"] * 1e9)


def moved(before: Fingerprint, after: Fingerprint) -> str | None:
    """Return why the two cannot be of the same placement, in words; None when they can."""
    for i, (a, b) in enumerate(zip(before.round_trips, after.round_trips, strict=True)):
        if _ratio(a, b) > _ROUND_TRIP_FACTOR:
            return f"the round trip to thread {i + 1} went from {a:.0f} to {b:.0f} ns"
    if _ratio(before.read, after.read) > _READ_FACTOR:
        return f"read bandwidth went from {before.read / 1e9:.1f} to {after.read / 1e9:.1f} GB/s"
    return None


def moved_prints(prints: Sequence[Fingerprint]) -> list[int]:
    """Return which of these were not in the placement that most were in; of two with as many the later one counts."""
    if not prints:
        return []
    alike_to = [[i for i, other in enumerate(prints) if moved(one, other) is None] for one in prints]
    majority = max(alike_to, key=lambda alike: (len(alike), alike[-1]))
    return [i for i in range(len(prints)) if i not in majority]


def _ratio(a: float, b: float) -> float:
    """Return how many times the larger is the smaller."""
    return max(a, b) / min(a, b)
