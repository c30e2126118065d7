"""The logical CPUs and NUMA nodes that there are. Source: the kernel's Documentation/admin-guide/cputopology.rst.

The list `/sys/devices/system/cpu/online` is one witness of several, and the one that containers falsify: lxcfs puts a
file there that counts from 0 up to the number of CPUs a container has, whichever they are. What the kernel keeps for
itself is told elsewhere and is believed rather: a process always has an online CPU in its mask and an allowed node in
its memory nodes, the nodes list their online CPUs, and the folder of a CPU says whether it is switched on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from homenode.cpuset import format_cpu_list
from homenode.host.topology.facts import FactReader, numbered
from homenode.host.topology.status import process_cpus, process_memory_nodes
from homenode.units import format_count

CPU_FOLDER = "/sys/devices/system/cpu"
NODE_FOLDER = "/sys/devices/system/node"
_MOST_NODES = 1024  # the kernel's own limit (NODES_SHIFT of 10)
_RENUMBERED = (
    "Nothing to do for homenode. Programs that trust this file count wrong: lxcfs writes it anew in containers."
)


def read_online(reader: FactReader) -> tuple[int, ...]:
    """Online CPUs: the kernel's list as far as its other files bear it out, else its cpu folders, else those of the
    nodes, else those this process may use. Notes `online_disagrees` where the list is wrong and `no_online_cpus`
    where nothing names a CPU.
    """
    told = reader.cpus(f"{CPU_FOLDER}/online")
    if told:
        return _corrected(reader, told)
    found = tuple(
        cpu
        for cpu in numbered(reader.source.names(CPU_FOLDER), "cpu")
        if reader.text(f"{CPU_FOLDER}/cpu{cpu}/online") != "0"
    )
    found = found or tuple(sorted(_cpus_of_nodes(reader))) or process_cpus(reader) or ()
    if not found:
        reader.note(
            "no_online_cpus",
            f"{CPU_FOLDER}/online names no CPU, and nothing else does",
            "Check that /sys and /proc are mounted.",
        )
    return found


def read_offline(reader: FactReader, online: Iterable[int]) -> tuple[int, ...]:
    """CPUs that are present or possible but not online."""
    known = reader.cpus(f"{CPU_FOLDER}/present") or reader.cpus(f"{CPU_FOLDER}/possible") or ()
    return tuple(sorted(set(known) - set(online)))


def read_node_ids(reader: FactReader) -> tuple[int, ...]:
    """Online nodes, ascending: the kernel's list and its node folders, and where this process may take memory from
    none of them, those it may.

    Only online nodes have folders. Notes `node_online_disagrees` where the list lacks some, and `too_many_nodes`.
    """
    folders = numbered(reader.source.names(NODE_FOLDER), "node")
    told = reader.cpus(f"{NODE_FOLDER}/online") or ()
    found = {*told, *(node for node in folders if _described(reader, node))} if told else set(folders)
    allowed = process_memory_nodes(reader) or ()
    if found and found.isdisjoint(allowed):
        found.update(allowed)
    if told and (beyond := found.difference(told)):
        message = (
            f"{NODE_FOLDER}/online names nodes {format_cpu_list(told)}; nodes {format_cpu_list(beyond)} are there too"
        )
        reader.note("node_online_disagrees", message, _RENUMBERED)
    if len(found) > _MOST_NODES:
        reader.note(
            "too_many_nodes",
            f"{NODE_FOLDER}/online names {format_count(len(found), 'node')}; the first {_MOST_NODES} are taken",
        )
    return tuple(sorted(found))[:_MOST_NODES]


def read_node_cpus(reader: FactReader, node: int) -> tuple[int, ...]:
    """The CPUs that a node lists, online or not as its kernel has it; empty where it lists none."""
    folder = f"{NODE_FOLDER}/node{node}"
    return reader.cpus_or_mask(f"{folder}/cpulist", f"{folder}/cpumap") or ()


def _corrected(reader: FactReader, reported: tuple[int, ...]) -> tuple[int, ...]:
    """The list of online CPUs, or, where this process may run on online CPUs that it lacks, all that other files show
    to be online.
    """
    mask = process_cpus(reader) or ()
    if not (beyond := set(mask).difference(reported)):
        return reported
    listed = _cpus_of_nodes(reader)
    folders = set(numbered(reader.source.names(CPU_FOLDER), "cpu"))
    shown = {cpu: _shown_online(reader, cpu, listed, folders) for cpu in beyond}
    missing = {cpu for cpu, is_online in shown.items() if is_online}
    if _is_limit(mask, reported):
        missing |= {
            cpu for cpu, is_online in shown.items() if is_online is None and (cpu in listed or not (listed or folders))
        }
    if not missing and beyond.issuperset(mask):
        missing = beyond  # a process runs somewhere: a mask of offline CPUs only cannot be
    if not missing:
        return reported  # a mask that nobody has narrowed holds CPUs that are offline or not even there
    named, lacking = format_cpu_list(reported), format_cpu_list(missing)
    message = f"{CPU_FOLDER}/online names CPUs {named}, and this process may run on {lacking}: the file is wrong"
    reader.note("online_disagrees", message, _RENUMBERED)
    others = listed.union(reported).difference(missing)
    return tuple(
        sorted(missing.union(cpu for cpu in others if _shown_online(reader, cpu, listed, folders) is not False))
    )


def _shown_online(reader: FactReader, cpu: int, listed: Collection[int], folders: Collection[int]) -> bool | None:
    """Return whether a CPU is online by its own switch, the nodes' lists, or its topology, which only online CPUs have;
    None where all of them are silent.
    """
    switch = reader.text(f"{CPU_FOLDER}/cpu{cpu}/online") if cpu in folders else ""
    if switch in ("0", "1"):
        return switch == "1"
    if cpu in folders and reader.source.names(f"{CPU_FOLDER}/cpu{cpu}/topology"):
        return True
    # Old kernels list CPUs that are not there.
    return True if cpu in listed and (cpu in folders or not folders) else None


def _is_limit(mask: Collection[int], reported: Collection[int]) -> bool:
    """Return whether somebody has narrowed the mask. The kernel then puts online CPUs into it only; one of everything
    holds all possible ones.
    """
    return not set(reported).issubset(mask)


def _cpus_of_nodes(reader: FactReader) -> set[int]:
    nodes = numbered(reader.source.names(NODE_FOLDER), "node")
    return {cpu for node in nodes for cpu in read_node_cpus(reader, node)}


def _described(reader: FactReader, node: int) -> bool:
    folder = f"{NODE_FOLDER}/node{node}"
    return any(reader.text(f"{folder}/{file}") for file in ("cpulist", "cpumap", "meminfo"))
