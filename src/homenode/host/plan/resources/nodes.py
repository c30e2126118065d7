"""NUMA nodes as CPU workers and lists of nodes see them. Pure.

A kernel without NUMA shows no nodes. There is then one node, number 0, with all CPUs, and no memory to bind: there is
no choice to make.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from homenode.host.plan.resources.memory_nodes import has_memory, memory_nodes
from homenode.host.topology.host import Host, Node


def nodes_of(host: Host) -> tuple[Node, ...]:
    """The online nodes, ascending; one made up where the kernel shows none."""
    if host.nodes:
        return tuple(sorted(host.nodes, key=lambda node: node.id))
    return (Node(0, tuple(sorted(host.cpu_by_id)), None, {0: 10}),)


def allowed_cpus(host: Host, node: Node) -> tuple[int, ...]:
    """CPUs of the node that this process may use, ascending."""
    allowed = set(host.allowance.cpus)
    return tuple(cpu for cpu in sorted(node.cpus) if cpu in allowed)


def permitted_nodes(host: Host) -> tuple[int, ...]:
    """Nodes whose memory this process may take (Mems_allowed_list; all where that is not known), with or without
    memory, ascending."""
    permitted = set(host.allowance.mems)
    return tuple(node.id for node in nodes_of(host) if not permitted or node.id in permitted)


def working_nodes(host: Host) -> tuple[Node, ...]:
    """Nodes that a CPU worker can call its own, ascending: with allowed CPUs and usable memory. Where no node has both,
    those with allowed CPUs."""
    computing = tuple(node for node in nodes_of(host) if allowed_cpus(host, node))
    return tuple(node for node in computing if has_memory(host, node.id)) or computing


def memory_of_cpus(host: Host, cpus: Iterable[int]) -> tuple[int, ...]:
    """Return where the memory of a process on `cpus` belongs, best first: every node the CPUs span, that with most of
    them first, the others by their distance from it. A node whose memory cannot be taken is left out; where that leaves
    none, the nearest one that has some.
    """
    spanned = Counter(cpu.node for number in cpus if (cpu := host.cpu_by_id.get(number)) and cpu.node is not None)
    if not spanned:
        return ()
    first = min(spanned, key=lambda node: (-spanned[node], node))
    return memory_nodes(host, sorted(spanned, key=lambda node: (host.distance(first, node), node)))
