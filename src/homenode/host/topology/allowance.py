"""What this process may use of its machine: CPUs, CPU time, memory. Read from /proc and /sys only; nothing is decided here.

Sources: sched(7), cpuset(7), the kernel's cgroup-v1 and cgroup-v2 documents, `topology` under /sys/devices/system/cpu.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from homenode.cpuset import parse_cpu_list
from homenode.errors import UserError

_UNLIMITED = 1 << 60  # cgroup v1 writes "no limit" as a huge number of bytes


@dataclass(frozen=True)
class Allowance:
    """`cpus`: allowed logical CPUs. `physical_cpus`: one of them for each core. `cpu_quota`: CPUs' worth of time, None for all.

    `memory_limit`: bytes this process's cgroups allow in all (None: no limit). `memory_available`: bytes it can still take without swapping.
    """

    cpus: tuple[int, ...]
    physical_cpus: tuple[int, ...]
    cpu_quota: float | None
    memory_limit: int | None
    memory_available: int

    @classmethod
    def of_process(cls, root: Path = Path("/"), cpus: Iterable[int] | None = None) -> Allowance:
        """Read it for the calling process; `root` and `cpus` stand in for the live machine in tests."""
        allowed = tuple(sorted(os.sched_getaffinity(0) if cpus is None else cpus))
        groups = _cgroup_folders(root)
        limits = [limit for folder in groups if (limit := _memory_limit(folder)) is not None]
        room = [limit - _memory_used(folder) for folder in groups if (limit := _memory_limit(folder)) is not None]
        free = _meminfo(root).get("MemAvailable", 0)
        return cls(
            cpus=allowed,
            physical_cpus=_one_per_core(root, allowed),
            cpu_quota=min((quota for folder in groups if (quota := _cpu_quota(folder)) is not None), default=None),
            memory_limit=min(limits, default=None),
            memory_available=max(0, min([free, *room])),
        )

    @property
    def usable_threads(self) -> int:
        """Threads that can run at once at full speed: physical cores, or fewer where the quota (rounded down) is smaller. At least 1."""
        quota = len(self.physical_cpus) if self.cpu_quota is None else int(self.cpu_quota)
        return max(1, min(len(self.physical_cpus), quota))


def _one_per_core(root: Path, cpus: tuple[int, ...]) -> tuple[int, ...]:
    """The first allowed CPU of every core, ascending; a CPU whose siblings are not listed is a core of its own."""
    taken: set[int] = set()
    firsts = []
    for cpu in cpus:
        if cpu not in taken:
            firsts.append(cpu)
            taken.update(_siblings(root, cpu))
    return tuple(firsts)


def _siblings(root: Path, cpu: int) -> tuple[int, ...]:
    folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
    text = _read(folder / "core_cpus_list") or _read(folder / "thread_siblings_list")
    try:
        return parse_cpu_list(text or "") or (cpu,)
    except UserError:
        return (cpu,)


def _cgroup_folders(root: Path) -> list[Path]:
    """The folders of this process's cgroups and all above them, v2 and the v1 cpu and memory hierarchies."""
    folders: dict[Path, None] = {}
    mount = root / "sys/fs/cgroup"
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        tops = (
            [mount]
            if not controllers
            else [mount / name for name in ("cpu,cpuacct", "cpu", "memory") if set(name.split(",")) & set(controllers.split(","))]
        )
        for top in tops:
            inner = top / path.lstrip("/")
            for folder in [inner, *inner.parents]:
                if folder == top or top in folder.parents:
                    folders[folder] = None
    return list(folders)


def _memory_limit(folder: Path) -> int | None:
    text = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
    return int(text) if text and text.isdecimal() and int(text) < _UNLIMITED else None


def _memory_used(folder: Path) -> int:
    """Bytes charged to the group that cannot be given back at once: page cache on the inactive list can."""
    text = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
    used = int(text) if text and text.isdecimal() else 0
    for line in (_read(folder / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file") and value.isdecimal():
            return max(0, used - int(value))
    return used


def _cpu_quota(folder: Path) -> float | None:
    words = (_read(folder / "cpu.max") or "").split()
    if len(words) == 2 and words[0].isdecimal() and words[1].isdecimal() and int(words[1]) > 0:
        return int(words[0]) / int(words[1])
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if quota and period and quota.isdecimal() and period.isdecimal() and int(period) > 0:
        return int(quota) / int(period)
    return None


def _meminfo(root: Path) -> dict[str, int]:
    found = {}
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdecimal():
            found[name] = int(words[0]) * 1024
    return found


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return None
