"""Which logical CPUs there are. Source: the kernel's Documentation/admin-guide/cputopology.rst."""

from __future__ import annotations

from collections.abc import Iterable

from homenode.host.topology.facts import FactReader, numbered
from homenode.host.topology.status import process_cpus

CPU_FOLDER = "/sys/devices/system/cpu"
NODE_FOLDER = "/sys/devices/system/node"
_MOST_NODES = 1024  # the kernel's own limit (NODES_SHIFT of 10)


def read_online(reader: FactReader) -> tuple[int, ...]:
    """Online CPUs: the kernel's list, else its cpu folders, else those of the nodes, else those this process may use."""
    online = reader.cpus(f"{CPU_FOLDER}/online")
    if online:
        return online
    found = tuple(
        cpu
        for cpu in numbered(reader.source.names(CPU_FOLDER), "cpu")
        if reader.text(f"{CPU_FOLDER}/cpu{cpu}/online") != "0"
    )
    if not found:
        nodes = numbered(reader.source.names(NODE_FOLDER), "node")
        lists = (
            reader.cpus_or_mask(f"{NODE_FOLDER}/node{node}/cpulist", f"{NODE_FOLDER}/node{node}/cpumap")
            for node in nodes
        )
        found = tuple(sorted({cpu for cpus in lists for cpu in cpus or ()}))
    found = found or process_cpus(reader) or ()
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
    """Online nodes, ascending: the kernel's list, else its node folders."""
    found = reader.cpus(f"{NODE_FOLDER}/online") or numbered(reader.source.names(NODE_FOLDER), "node")
    if len(found) > _MOST_NODES:
        reader.note(
            "too_many_nodes", f"{NODE_FOLDER}/online names {len(found)} nodes; the first {_MOST_NODES} are taken"
        )
    return found[:_MOST_NODES]
