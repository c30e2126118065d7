"""NUMA nodes: CPUs, memory, distances.

Source: the kernel's Documentation/ABI/stable/sysfs-devices-node; ACPI, System Locality Information Table (10 is local).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from homenode.host.topology.facts import FactReader, parse_number
from homenode.host.topology.host import Node
from homenode.host.topology.memory import available_by_node, read_huge_pages, read_meminfo
from homenode.host.topology.online import NODE_FOLDER, read_node_cpus, read_node_ids

_LOCAL, _REMOTE = 10, 20
_DENSER = 2  # a node that a list covers more than twice as densely as another is nearer than that one


def read_nodes(reader: FactReader, online_cpus: Sequence[int]) -> tuple[Node, ...]:
    """Online nodes, ascending; none where the kernel has no NUMA support (then policies take the host for one node)."""
    ids = read_node_ids(reader)
    here = frozenset(online_cpus)
    distances = _read_distances(reader, ids)
    free = available_by_node(reader, ids)
    return tuple(
        Node(
            id=node,
            cpus=_node_cpus(reader, node, here),
            memory=read_meminfo(reader, f"{NODE_FOLDER}/node{node}/meminfo").get("MemTotal"),
            distances=distances[node],
            huge_pages=read_huge_pages(reader, f"{NODE_FOLDER}/node{node}/hugepages"),
            free=free.get(node),
        )
        for node in ids
    )


def node_by_cpu(nodes: Iterable[Node]) -> dict[int, int]:
    """The node of every CPU; the lowest where emulated nodes (numa=fake) list a CPU more than once."""
    found: dict[int, int] = {}
    for node in nodes:
        for cpu in node.cpus:
            found.setdefault(cpu, node.id)
    return found


def tells_place(cpus: Iterable[int], nodes: Iterable[Node]) -> bool:
    """Return whether a list of CPUs near a device tells nodes apart: it leaves one out, or covers one more than twice
    as densely as another.

    For a device of unknown place the kernel lists all CPUs as local (`local_cpulist` beside a `numa_node` of -1), and
    the vendors' tools repeat it: such a list is an unknown, and no node may be made of it.

    On a host that has one node with CPUs every list that touches it tells it, as there is no other place. A list cut
    to the CPUs that a container may use is still the list of all, hence densities and not whole nodes.
    """
    wanted = set(cpus)
    covered = [len(wanted.intersection(node.cpus)) / len(node.cpus) for node in nodes if node.cpus]
    if len(covered) < 2:
        return any(covered)
    return max(covered) > _DENSER * min(covered)


def _node_cpus(reader: FactReader, node: int, online: frozenset[int]) -> tuple[int, ...]:
    listed = read_node_cpus(reader, node)
    return listed if online.issuperset(listed) else tuple(cpu for cpu in listed if cpu in online)


def _read_distances(reader: FactReader, ids: Sequence[int]) -> dict[int, dict[int, int]]:
    """A row of `distance` holds one figure for every online node in ascending order, whatever their numbers are."""
    found, odd = {}, []
    for node in ids:
        row = [parse_number(word) for word in reader.text(f"{NODE_FOLDER}/node{node}/distance").split()]
        figures = [figure for figure in row if figure is not None and figure >= 0]
        if len(row) == len(figures) == len(ids) and any(figures):
            found[node] = dict(zip(ids, figures, strict=True))
        else:
            found[node] = {other: _LOCAL if other == node else _REMOTE for other in ids}
            odd.append(node)
    if odd and len(ids) > 1:
        reader.note(
            "no_distances",
            f"node {', '.join(map(str, odd))}: no row of {len(ids)} distances; {_LOCAL} is taken for the node "
            f"itself and {_REMOTE} for others",
            "Nothing to do, unless some nodes are farther than others: then the firmware should say so (ACPI SLIT).",
        )
    return found
