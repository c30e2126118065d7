"""Memory that the kernel gives back when somebody asks for more: one rule for the machine, its nodes and its control
groups.

What can be had is what is free, the pages of files on both lists, and slab that can be reclaimed: what the kernel makes
MemAvailable of. Both lists, as a page that was read twice is `active` and is dropped like any other. Pages of files
that are still to be written (dirty) are among them: the kernel writes them when it needs the room. Shared memory and
what is locked is on neither list.

Sources: proc_meminfo(5); the kernel's mm/show_mem.c (si_mem_available), Documentation/admin-guide/cgroup-v2.rst and
cgroup-v1/memory.rst (memory.stat).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from homenode.host.topology.facts import FactReader, parse_number

_OF_MACHINE = ("Active(file)", "Inactive(file)", "SReclaimable")
# Version 1 counts in `memory.usage_in_bytes` what is charged below the group as well: so do its names with total_. It
# tells of no slab.
_OF_GROUP = ("active_file", "inactive_file", "slab_reclaimable")
_OF_GROUP_AND_BELOW = ("total_active_file", "total_inactive_file")


def easily_had(meminfo: Mapping[str, int]) -> int:
    """Bytes that are free or given back on demand, by the lines of /proc/meminfo or of a node's meminfo."""
    return meminfo.get("MemFree", 0) + _sum(meminfo, _OF_MACHINE)


def reclaimable_of_group(stat: Mapping[str, int]) -> int:
    """Bytes charged to a control group that are given back on demand, by its memory.stat."""
    return _sum(stat, _OF_GROUP_AND_BELOW if any(name in stat for name in _OF_GROUP_AND_BELOW) else _OF_GROUP)


def read_memory_stat(reader: FactReader, folder: str) -> dict[str, int]:
    """Figures of a group's memory.stat by name; lines of other kinds are left out."""
    found = {}
    for line in reader.text(f"{folder}/memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if (number := parse_number(value.strip())) is not None and number >= 0:
            found[name] = number
    return found


def _sum(figures: Mapping[str, int], names: Sequence[str]) -> int:
    return sum(figures.get(name, 0) for name in names)
