"""Load of the CPUs that a process may use: by all programs, and by a hypervisor that gives them to other guests.

Sources: /proc/stat and /proc/PID/stat (proc_stat(5), proc_pid_stat(5), times in clock ticks), /proc/loadavg,
/proc/pressure/cpu (Documentation/accounting/psi.rst).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from homenode.host.topology.source import Source

SAMPLE_S = 0.5
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
_IDLE = ("idle", "iowait")
_CPU_LINE = re.compile(r"cpu(\d+)((?: \d+)+)")
_PRESSURE = re.compile(r"^some avg10=(\d+(?:\.\d+)?)", re.MULTILINE)

CpuTimes = Mapping[int, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class CpuLoad:
    """`busy`, `stolen`: parts (0 to 1) of the time of the CPUs in which programs ran, and in which the hypervisor gave
    them to other guests, over `seconds`. `load_average`: threads that ran or wanted to, over a minute, of the machine.
    `waiting`: part of ten seconds in which some thread waited for a CPU. None: the kernel does not tell.
    """

    busy: float
    stolen: float
    cpus: int
    seconds: float = SAMPLE_S
    load_average: float | None = None
    waiting: float | None = None


def read_cpu_load(
    source: Source, cpus: Collection[int] | None = None, pid: int | None = None, seconds: float = SAMPLE_S
) -> CpuLoad | None:
    """Look twice, `seconds` apart, at the CPUs given (None: all). What process `pid` itself uses does not count.

    None where the kernel does not tell of these CPUs.
    """
    before, own_before = parse_cpu_times(source.read("/proc/stat") or ""), _own_ticks(source, pid)
    time.sleep(seconds)
    after, own_after = parse_cpu_times(source.read("/proc/stat") or ""), _own_ticks(source, pid)
    parts = busy_and_stolen(before, after, cpus, max(0, own_after - own_before))
    if parts is None:
        return None
    average = (source.read("/proc/loadavg") or "").split(" ")[0]
    pressure = _PRESSURE.search(source.read("/proc/pressure/cpu") or "")
    return CpuLoad(
        *parts,
        cpus=len(before) if cpus is None else len(set(cpus) & set(before)),
        seconds=seconds,
        load_average=float(average) if re.fullmatch(r"\d+\.\d+", average) else None,
        waiting=float(pressure[1]) / 100 if pressure else None,
    )


def parse_cpu_times(text: str) -> CpuTimes:
    """Ticks by field of each CPU in /proc/stat. Fields that an old kernel does not have are 0."""
    found = {}
    for line in text.splitlines():
        if match := _CPU_LINE.match(line):
            found[int(match[1])] = dict(zip(_FIELDS, map(int, match[2].split()), strict=False))
    return found


def busy_and_stolen(
    before: CpuTimes, after: CpuTimes, cpus: Collection[int] | None = None, own: int = 0
) -> tuple[float, float] | None:
    """Parts of the time between two looks that CPUs were busy, less `own` ticks, and stolen; None where no time passed.

    Counters that run backwards, as those of waiting for I/O may, count as standing still.
    """
    spent = dict.fromkeys(_FIELDS, 0)
    for cpu in set(before) & set(after) if cpus is None else set(before) & set(after) & set(cpus):
        for name in _FIELDS:
            spent[name] += max(0, after[cpu].get(name, 0) - before[cpu].get(name, 0))
    total = sum(spent.values())
    if not total:
        return None
    busy = sum(ticks for name, ticks in spent.items() if name not in (*_IDLE, "steal"))
    return max(0, busy - own) / total, spent["steal"] / total


def _own_ticks(source: Source, pid: int | None) -> int:
    """Time that all threads of a process have computed; 0 for None, and where it cannot be told."""
    words = (source.read(f"/proc/{pid}/stat") or "").rpartition(")")[2].split() if pid is not None else []
    return int(words[11]) + int(words[12]) if len(words) > 12 and pid != os.getpid() else 0
