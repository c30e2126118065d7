"""A check that the CPUs and nodes of a target are on this machine, asked before anything is changed."""

from __future__ import annotations

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.bind.base.target import Target
from homenode.host.topology.facts import FactReader
from homenode.host.topology.online import NODE_FOLDER, read_node_ids, read_online
from homenode.host.topology.source import LiveSource, Source

_CHOOSE = "Choose from those that are there (`homenode host` shows them)."


def check_exists(target: Target, source: Source | None = None) -> None:
    """Raises PlacementError no_such_cpu and no_such_node, naming them. A kernel without NUMA has node 0 alone."""
    reader = FactReader(source or LiveSource())
    online, nodes = read_online(reader), read_node_ids(reader) or (0,)
    cpus = {cpu for group in (target.cpus, *target.threads.values()) for cpu in group}
    if absent := cpus - set(online):
        message = f"CPU {format_cpu_list(absent)} is not on this machine, or is offline"
        raise _refused("no_such_cpu", message, f"online CPUs {format_cpu_list(online)}", cpus, _CHOOSE)
    if absent := set(target.memory_nodes) - set(nodes):
        message = f"NUMA node {format_cpu_list(absent)} is not on this machine"
        raise _refused("no_such_node", message, f"nodes {format_cpu_list(nodes)}", set(target.memory_nodes), _CHOOSE)


def check_running(target: Target, source: Source | None = None) -> None:
    """Check, for a process whose memory is to be moved or looked at: also PlacementError node_without_memory, as
    nothing can lie there.
    """
    source = source or LiveSource()
    check_exists(target, source)
    filled = FactReader(source).cpus(f"{NODE_FOLDER}/has_memory")
    if filled and (empty := set(target.memory_nodes) - set(filled)):
        message = f"NUMA node {format_cpu_list(empty)} has no memory"
        raise _refused(
            "node_without_memory",
            message,
            f"nodes with memory {format_cpu_list(filled)}",
            set(target.memory_nodes),
            _CHOOSE,
        )


def _refused(code: str, message: str, seen: str, wanted: set[int], remedy: str) -> PlacementError:
    return PlacementError(code, message, seen=seen, wanted=format_cpu_list(wanted), remedy=remedy)
