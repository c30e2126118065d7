"""Sets of CPUs that share something, by their lowest CPU. Source: the kernel's
Documentation/admin-guide/cputopology.rst.

A set is read once, from its first CPU, and holds for all its members: a large host has a hundred thousand such files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from homenode.host.topology.facts import FactReader
from homenode.host.topology.online import CPU_FOLDER


def read_cores(reader: FactReader, cpus: Sequence[int]) -> dict[int, int]:
    """The lowest of `cpus` on the same physical core, by CPU; a CPU whose siblings are not told is missing."""
    files = ("core_cpus_list", "thread_siblings_list", "core_cpus", "thread_siblings")
    return groups(cpus, lambda cpu: shared_with(reader, cpu, *files))


def cores_within_nodes(cores: Mapping[int, int], node_of: Mapping[int, int]) -> dict[int, int]:
    """`cores`, where CPUs on different nodes are never of one core: the lowest of the siblings on the same node, by
    CPU.

    Threads of one core share their memory controller, so one of the two facts is wrong (guests are given such
    topologies). The node counts, as memory hangs on it; Linux on x86 drops a sibling on another node as well. A CPU
    without a node stays with the first sibling that has one.
    """
    usual: dict[int, int] = {}
    for cpu in sorted(cores):
        if cpu in node_of:
            usual.setdefault(cores[cpu], node_of[cpu])
    firsts: dict[tuple[int, int | None], int] = {}
    return {cpu: firsts.setdefault((cores[cpu], node_of.get(cpu, usual.get(cores[cpu]))), cpu) for cpu in sorted(cores)}


def groups(cpus: Sequence[int], members_of: Callable[[int], Sequence[int] | None]) -> dict[int, int]:
    """The lowest member of its set, by CPU. `members_of` is asked once for each set; None or nothing: the CPU belongs
    to none that is known."""
    here = set(cpus)
    found: dict[int, int] = {}
    for cpu in cpus:
        if cpu not in found and (members := members_of(cpu)):
            found[cpu] = cpu
            for member in members:
                if member in here:
                    found.setdefault(member, cpu)
    return found


def shared_with(reader: FactReader, cpu: int, *files: str) -> tuple[int, ...]:
    """The first set among these files of the CPU's topology folder, lists and masks; empty when there is none."""
    for name in files:
        path = f"{CPU_FOLDER}/cpu{cpu}/topology/{name}"
        if found := reader.cpus(path) if name.endswith("_list") else reader.mask(path):
            return found
    return ()
