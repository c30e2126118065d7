"""How often the kernel has stopped this process because its CPU quota was used up.

Source: the kernel's Documentation/admin-guide/cgroup-v2.rst (`cpu.stat`) and scheduler/sched-bwc.rst.
"""

from __future__ import annotations

from dataclasses import dataclass

from homenode.host.topology.cgroups import group_folders
from homenode.host.topology.facts import FactReader, parse_number


@dataclass(frozen=True, slots=True)
class Throttling:
    """Counters since the group began: periods of its quota, those of them in which it was stopped, and for how many
    seconds, summed over CPUs.
    """

    periods: int
    throttled: int
    seconds: float


def read_throttling(reader: FactReader) -> Throttling | None:
    """Return the counters of the group, among this process's and all above it, that was stopped longest; None where no
    group has a quota.
    """
    seen = [_read(reader, folder) for folder in group_folders(reader, ("cpu",))]
    return max((each for each in seen if each is not None), key=lambda each: each.seconds, default=None)


def _read(reader: FactReader, folder: str) -> Throttling | None:
    words = [line.split() for line in reader.text(f"{folder}/cpu.stat").splitlines()[:64]]
    found = {pair[0]: parse_number(pair[1]) or 0 for pair in words if len(pair) == 2}
    if not found.get("nr_periods"):
        return None
    seconds = found["throttled_usec"] / 1e6 if "throttled_usec" in found else found.get("throttled_time", 0) / 1e9
    return Throttling(found["nr_periods"], found.get("nr_throttled", 0), seconds)
