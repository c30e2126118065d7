"""The nodes that memory can come from. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.host.topology.host import Host


def has_memory(host: Host, node: int) -> bool:
    """Return whether the node has memory and this process may take it. A node whose size is not told is taken to have
    some.
    """
    known = host.node_by_id.get(node)
    allowed = host.allowance.mems
    return known is not None and known.memory != 0 and (not allowed or node in allowed)


def memory_nodes(host: Host, nodes: Sequence[int]) -> tuple[int, ...]:
    """Return those of `nodes` with memory for this process, in their order; when there is none, the nearest node to the
    first of them that has some.

    An accelerator's own memory is no such node, and nodes without CPUs (memory of a slower kind) come last among
    equally near ones. Empty on a host without nodes.
    """
    found = tuple(node for node in nodes if has_memory(host, node))
    if found or not nodes:
        return found
    devices = {chip.memory_node for chip in host.accelerators.chips}
    other = [node for node in host.nodes if has_memory(host, node.id) and node.id not in devices]
    if not other:
        return ()
    return (min(other, key=lambda node: (host.distance(nodes[0], node.id), not node.cpus, node.id)).id,)
