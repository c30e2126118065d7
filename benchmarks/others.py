"""What else used the CPUs while something was measured: a figure taken beside other work says nothing about the
engine."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Self

_LARGEST_SHARE = 0.06  # of the CPUs' time; what a kernel does by the way stays well below
_TICKS = os.sysconf("SC_CLK_TCK")
_STAT = Path("/proc/stat")


def used_seconds(stat: str, cpus: set[int]) -> float:
    """Seconds these CPUs have been computing, or were kept from it by the host, since the machine started; `stat` is
    the text of /proc/stat."""
    total = 0
    for line in stat.splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name[3:].isdecimal() and int(name[3:]) in cpus:
            user, nice, system, _idle, _waiting, interrupts, soft, stolen = map(int, fields[:8])
            total += user + nice + system + interrupts + soft + stolen
    return total / _TICKS


def disturbed(shares: dict[str, float]) -> str | None:
    """Why what was measured beside others with these shares of the CPUs does not count, by side; None when it does."""
    return next(
        (
            f"others used {share:.0%} of the CPUs beside {side}"
            for side, share in shares.items()
            if share > _LARGEST_SHARE
        ),
        None,
    )


class Others:
    """`with Others() as others:` around programs that are started and waited for; then `others.share`: of the time of
    the CPUs this process may use, what neither it nor they have used and that was not idle. `standing`: the process id
    of one that was there before and stays.
    """

    share = 0.0

    def __init__(self, standing: int | None = None) -> None:
        self._standing = standing

    def __enter__(self) -> Self:
        self._cpus = os.sched_getaffinity(0)
        self._start = time.monotonic(), self._used(), self._own_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        began, used, own = self._start
        others = self._used() - used - (self._own_seconds() - own)
        self.share = max(0.0, others / (len(self._cpus) * (time.monotonic() - began)))

    def _used(self) -> float:
        return used_seconds(_STAT.read_text(encoding="ascii"), self._cpus)

    def _own_seconds(self) -> float:
        """CPU time of this process, of all its descendants that have ended, and of the one that stays."""
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in usage) + (
            process_seconds(self._standing) if self._standing else 0.0
        )


def process_seconds(process: int) -> float:
    """CPU time of all threads of a process so far."""
    # From the third on: the name may hold spaces.
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS
