"""Sets of CPUs that share something, by their lowest CPU. Source: the kernel's Documentation/admin-guide/cputopology.rst.

A set is read once, from its first CPU, and holds for all its members: a large host has a hundred thousand such files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from homenode.host.topology.facts import FactReader

CPU_FOLDER = "/sys/devices/system/cpu"


def read_cores(reader: FactReader, cpus: Sequence[int]) -> dict[int, int]:
    """The lowest of `cpus` on the same physical core, by CPU; a CPU whose siblings are not told is missing."""
    return groups(cpus, lambda cpu: shared_with(reader, cpu, ("core_cpus_list", "thread_siblings_list"), ("core_cpus", "thread_siblings")))


def groups(cpus: Sequence[int], members_of: Callable[[int], Sequence[int] | None]) -> dict[int, int]:
    """The lowest member of its set, by CPU. `members_of` is asked once for each set; None or nothing: the CPU belongs to none that is known."""
    here = set(cpus)
    found: dict[int, int] = {}
    for cpu in cpus:
        if cpu not in found and (members := members_of(cpu)):
            found[cpu] = cpu
            for member in members:
                if member in here:
                    found.setdefault(member, cpu)
    return found


def shared_with(reader: FactReader, cpu: int, lists: Iterable[str], masks: Iterable[str]) -> tuple[int, ...] | None:
    folder = f"{CPU_FOLDER}/cpu{cpu}/topology"
    for name in lists:
        if found := reader.cpus(f"{folder}/{name}"):
            return found
    for name in masks:
        if found := reader.mask(f"{folder}/{name}"):
            return found
    return None
