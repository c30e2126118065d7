"""Limits of the control groups this process is in: CPU time, memory, CPUs.

Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/{cpusets,memory}.rst,
scheduler/sched-bwc.rst; cgroups(7). Hierarchies are looked for where every distribution mounts them, below
/sys/fs/cgroup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from homenode.host.topology.facts import FactReader, parse_number
from homenode.host.topology.reclaimable import read_memory_stat, reclaimable_of_group

_MOUNT = "/sys/fs/cgroup"
_CONTROLLERS = ("cpu", "cpuacct", "memory", "cpuset")
_UNLIMITED = 1 << 60  # version 1 writes "no limit" as a huge number of bytes
_MOST_GROUPS = 64  # from a group up to its root; the kernel's own limit on nesting is not reached by anyone


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """`cpu_quota`: CPUs' worth of time. `memory_limit`: bytes in all, before the kernel slows the group down or ends a
    process; `memory_room`: bytes of it that can be had. `cpus`: the CPUs the cpuset permits. None: no limit, and for
    `cpus` also: not told."""

    cpu_quota: float | None
    memory_limit: int | None
    memory_room: int | None
    cpus: tuple[int, ...] | None


def read_group_limits(reader: FactReader) -> GroupLimits:
    """The tightest limits of this process's groups and of all groups above them."""
    folders = group_folders(reader)
    quotas = [quota for folder in folders if (quota := _cpu_quota(reader, folder)) is not None]
    memory = [(limit, limit - group.used) for group in memory_groups(reader) for _, limit in group.limits]
    return GroupLimits(
        cpu_quota=min(quotas, default=None),
        memory_limit=min((limit for limit, _ in memory), default=None),
        memory_room=max(0, min(room for _, room in memory)) if memory else None,
        cpus=_cpuset(reader, folders),
    )


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A control group with limits of memory: `limits` by the file they are in, and bytes `used` of them that are not
    given back on demand."""

    folder: str
    used: int
    limits: tuple[tuple[str, int], ...]


def memory_groups(reader: FactReader) -> list[MemoryGroup]:
    """This process's groups and all above them that limit memory: memory.high, from where the kernel slows a group
    down, as well as the limit at which it ends a process."""
    found = []
    for folder in group_folders(reader, ("memory",)):
        stat = read_memory_stat(reader, folder)
        told = _memory_limits(reader, folder, stat)
        limits = tuple((name, size) for name, size in told if size is not None and 0 <= size < _UNLIMITED)
        if limits:
            used = reader.number(f"{folder}/memory.current") or reader.number(f"{folder}/memory.usage_in_bytes") or 0
            found.append(MemoryGroup(folder, max(0, used - reclaimable_of_group(stat)), limits))
    return found


def group_folders(reader: FactReader, wanted: Sequence[str] = _CONTROLLERS) -> list[str]:
    """Folders of this process's groups with these controllers, and of those of version 2, each followed by those above
    it.

    In a container /proc/self/cgroup may name a path as the host sees it, which is not there: then only the mount's root
    has files.
    """
    folders: dict[str, None] = {}
    for line in reader.text("/proc/self/cgroup").splitlines()[:_MOST_GROUPS]:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        parts = [part for part in path.split("/") if part][:_MOST_GROUPS]
        parts = [] if ".." in parts else parts  # a group outside this cgroup namespace
        for mount in _mounts(number, controllers, wanted):
            folders |= dict.fromkeys("/".join([mount, *parts[:depth]]) for depth in range(len(parts), -1, -1))
    return list(folders)


def _mounts(number: str, controllers: str, wanted: Sequence[str]) -> list[str]:
    """Return where a hierarchy may be mounted: version 2 has number 0 and no controllers; on hybrid systems it lies in
    `unified`.
    """
    if number == "0" and not controllers:
        return [_MOUNT, f"{_MOUNT}/unified"]
    names = [name for name in controllers.split(",") if name in _CONTROLLERS]
    if not set(names) & set(wanted):
        return []
    joined = [",".join(names), ",".join(reversed(names))] if len(names) > 1 else []
    return [f"{_MOUNT}/{name}" for name in dict.fromkeys([*joined, *names])]


def _cpu_quota(reader: FactReader, folder: str) -> float | None:
    """CPUs' worth of time: `cpu.max` holds quota and period in one line, version 1 has a file for each; "max" and -1
    say no limit."""
    text = reader.text(f"{folder}/cpu.max")
    if not text:
        quota, period = reader.number(f"{folder}/cpu.cfs_quota_us"), reader.number(f"{folder}/cpu.cfs_period_us")
    elif text.split()[0] == "max":
        return None
    else:
        first, _, second = text.partition(" ")
        quota, period = parse_number(first), parse_number(second.strip())
        if not quota or not period:
            reader.note("fact_unreadable", f"{folder}/cpu.max: {text[:40]!r} is no quota and period")
    return quota / period if quota is not None and quota > 0 and period is not None and period > 0 else None


def _memory_limits(reader: FactReader, folder: str, stat: Mapping[str, int]) -> Iterator[tuple[str, int | None]]:
    """Yield what is told of a group's limits, by name. Version 1 tells in memory.stat of limits above what a container
    sees.
    """
    for name in ("memory.high", "memory.max", "memory.limit_in_bytes"):
        path = f"{folder}/{name}"
        yield name, None if reader.text(path) == "max" else reader.number(path)
    yield "hierarchical_memory_limit of memory.stat", stat.get("hierarchical_memory_limit")


def _cpuset(reader: FactReader, folders: Sequence[str]) -> tuple[int, ...] | None:
    """CPUs that the nearest group with a cpuset permits. What a group has in effect is already cut to what is above
    it."""
    for folder in folders:
        for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
            found = reader.cpus(f"{folder}/{name}")
            if found:
                return found
    return None
