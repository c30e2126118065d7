"""Logical CPUs: which share a core, a cluster, a cache, a die, a socket, and how fast they are.

Source: the kernel's Documentation/admin-guide/cputopology.rst and
Documentation/ABI/{testing,stable}/sysfs-devices-system-cpu.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from homenode.cpuset import format_cpu_list
from homenode.host.topology.core_speeds import with_speeds
from homenode.host.topology.facts import FactReader, numbered
from homenode.host.topology.host import Cpu
from homenode.host.topology.online import CPU_FOLDER
from homenode.host.topology.siblings import cores_within_nodes, groups, read_cores, shared_with
from homenode.units import format_count

_MOST_NAMED = 4  # cores in a message
_MODEL = re.compile(r"^(?:model name|cpu model|cpu)[ \t]*:[ \t]*(\S.*?)[ \t]*$", re.MULTILINE)


def read_cpus(reader: FactReader, online: Sequence[int], node_of: Mapping[int, int]) -> tuple[Cpu, ...]:
    """All online CPUs with what they share. Where the kernel tells no topology every CPU is a core of its own on socket
    0."""
    if not online:
        return ()
    cores = _read_cores(reader, online, node_of)
    clusters = _cluster_names(reader, online, cores)
    caches = groups(online, lambda cpu: _last_level_cache(reader, cpu))
    sockets = _numbers(reader, online, cores, "physical_package_id", "package_cpus_list")
    dies = _numbers(reader, online, cores, "die_id", "die_cpus_list")
    cpus = tuple(
        Cpu(cpu, cores.get(cpu, cpu), sockets[cpu], dies[cpu], clusters.get(cpu), caches.get(cpu), node_of.get(cpu))
        for cpu in online
    )
    return with_speeds(reader, cpus)


def read_model(reader: FactReader) -> str:
    """The name of the processor as /proc/cpuinfo has it, of the first CPU; empty where it has none (Arm)."""
    found = _MODEL.search(reader.text("/proc/cpuinfo"))
    return found[1] if found else ""


def _read_cores(reader: FactReader, online: Sequence[int], node_of: Mapping[int, int]) -> dict[int, int]:
    """The core of every CPU that tells its siblings, within one node. Notes `siblings_across_nodes`."""
    told = read_cores(reader, online)
    cores = cores_within_nodes(told, node_of)
    spanning = dict.fromkeys(head for cpu, head in told.items() if cores[cpu] != cores[head])
    if spanning:
        threads = {head: [cpu for cpu in told if told[cpu] == head] for head in list(spanning)[:_MOST_NAMED]}
        named = [f"{format_cpu_list(cpus)} on nodes {_nodes_named(cpus, node_of)}" for cpus in threads.values()]
        more = f"; and {format_count(len(spanning) - len(named), 'more core')}" if len(spanning) > len(named) else ""
        message = f"the kernel calls CPUs on several nodes SMT siblings: {'; '.join(named)}{more}. The nodes are taken"
        remedy = (
            "Mend the guest's topology: threads of a core belong on one NUMA node. Elsewhere the firmware is wrong."
        )
        reader.note("siblings_across_nodes", message, remedy)
    return cores


def _nodes_named(cpus: Sequence[int], node_of: Mapping[int, int]) -> str:
    return format_cpu_list({node_of[cpu] for cpu in cpus if cpu in node_of})


def _cluster_names(reader: FactReader, online: Sequence[int], cores: Mapping[int, int]) -> dict[int, int]:
    """Clusters by their lowest CPU; none at all where no cluster is larger than a core: kernels without the fact repeat
    the core."""
    clusters = groups(online, lambda cpu: shared_with(reader, cpu, "cluster_cpus_list", "cluster_cpus"))
    larger = any(cores.get(cpu, cpu) != cores.get(cluster, cluster) for cpu, cluster in clusters.items())
    return clusters if larger else {}


def _last_level_cache(reader: FactReader, cpu: int) -> tuple[int, ...] | None:
    """CPUs that share the highest data or unified cache of level 3 or more."""
    folder = f"{CPU_FOLDER}/cpu{cpu}/cache"
    best, where = 2, ""
    for index in numbered(reader.source.names(folder), "index"):
        level = reader.number(f"{folder}/index{index}/level")
        if level is not None and level > best and reader.text(f"{folder}/index{index}/type") != "Instruction":
            best, where = level, f"{folder}/index{index}"
    shared = reader.cpus_or_mask(f"{where}/shared_cpu_list", f"{where}/shared_cpu_map") if where else None
    return (cpu,) if shared == () else shared  # some kernels list nobody for a cache that belongs to one CPU


def _numbers(
    reader: FactReader, online: Sequence[int], cores: Mapping[int, int], file: str, members: str
) -> dict[int, int]:
    """A number that whole cores have in common (socket, die), as the kernel gives it; 0 where it gives none or -1.

    Read once for each set that `members` lists, else once for each core: the older core_siblings_list is wrong on some
    machines.
    """
    if reader.number(f"{CPU_FOLDER}/cpu{online[0]}/topology/{file}") is None:
        return dict.fromkeys(online, 0)
    here = set(online)
    found: dict[int, int] = {}
    for cpu in online:
        head = cores.get(cpu, cpu)
        if cpu not in found and head in found:
            found[cpu] = found[head]
        elif cpu not in found:
            number = max(0, reader.number(f"{CPU_FOLDER}/cpu{cpu}/topology/{file}") or 0)
            found |= {
                member: number for member in shared_with(reader, cpu, members) if member in here and member not in found
            }
            found[cpu] = number
    return found
