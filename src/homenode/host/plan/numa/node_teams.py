"""The compute threads of one engine that spans several NUMA nodes: on which CPUs, and which node each takes its memory
from. Pure.

node 0 |== cores 0-7 ==| 8 threads   node 1 |== cores 8-15 ==| 7 threads, and a core for the scheduler, HTTP and
                                     everything else
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.errors import PlacementError, UserError
from homenode.host.plan.resources.core_order import fastest_cores, fastest_cpus, without_low_power
from homenode.host.plan.resources.cores import NO_NODE, AllowedCore, allowed_cores
from homenode.host.plan.resources.memory_nodes import memory_nodes
from homenode.host.topology.host import Host
from homenode.units import format_count


@dataclass(frozen=True, slots=True)
class NodeTeam:
    """The threads of one node.

    `node`: of its CPUs. `memory_node`: where its memory comes from, the node itself or, where that has none, the
    nearest with memory. `cpus`: one for each compute thread, neighbours in a cache next to each other. `memory`: bytes
    free on `memory_node`; all it has where that is not told (a recording); None where neither is known.
    """

    node: int
    memory_node: int
    cpus: tuple[int, ...]
    memory: int | None


def node_teams(
    host: Host, nodes: tuple[int, ...] | None, threads: int | None, threads_per_core: int, reserve: int | None = None
) -> tuple[NodeTeam, ...]:
    """A team for each node that gets threads, in the order of `nodes`, else ascending.

    `nodes`: to compute on, None for all with allowed CPUs. `threads`: in all, None for `threads_per_core` on every
    core, within the CPU quota. `reserve`: cores that nothing computes on; None for as many as `spare_cores` says where
    `threads` does not say otherwise. Cores outside `nodes` count among them. Threads are shared out in proportion to
    the nodes' cores; more of them than `threads_per_core` of each core means that further CPUs of the cores are wanted
    too. The fastest cores compute (`core_order`), and low-power cores only where `threads` exceeds what all others can
    do. A CPU of which the kernel does not tell the node is left out on a host that has nodes: no memory is its own.

    Raises PlacementError no_such_node, node_without_cpus, bad_node_list or insufficient_cpus, and UserError for more
    threads than CPUs or a reserve of all cores.
    """
    found = _cores_by_node(host)
    chosen = {node: found[node] for node in _checked(host, nodes, found)}
    cores = sum(map(len, chosen.values()))
    elsewhere = sum(map(len, found.values())) - cores
    if threads is None or reserve is not None:
        kept = max(0, (spare_cores(cores + elsewhere) if reserve is None else reserve) - elsewhere)
        if kept >= cores:
            raise _no_core_left(reserve or 0, cores, elsewhere)
        chosen = fastest_cores(chosen, cores - kept)
    if threads is None:
        chosen = without_low_power(chosen)
        cpus = {
            node: _first_threads(own, threads_per_core)
            for node, own in _within_quota(chosen, host, threads_per_core).items()
        }
    else:
        cpus = _shared_out(chosen, threads, threads_per_core)
    return tuple(_team(host, node, own) for node, own in cpus.items() if own)


def spare_cores(cores: int) -> int:
    """Cores without a compute thread where nobody says how many threads there shall be: the scheduler, HTTP and the
    rest of the machine live there."""
    return 1 if cores > 2 else 0


def parse_node_list(text: str) -> tuple[int, ...]:
    """The nodes of a list such as `1,0` or `0,2-3`, each once, in the order written. PlacementError bad_node_list."""
    try:
        nodes = tuple(dict.fromkeys(node for part in text.split(",") for node in parse_cpu_list(part)))
        if nodes and all(part.strip() for part in text.split(",")):
            return nodes
    except UserError:
        pass
    raise PlacementError(
        "bad_node_list",
        "the list of nodes to compute on cannot be read",
        seen=repr(text[:80]),
        wanted="numbers and ranges, such as 0,2-3",
        remedy="Mend --numa-nodes, or the variable it came from.",
        param="--numa-nodes",
    )


def _cores_by_node(host: Host) -> dict[int, list[AllowedCore]]:
    """Allowed cores by node. Where no node is told of any core, all are on one: the first there is, or 0."""
    found = allowed_cores(host)
    told = {node: cores for node, cores in found.items() if node != NO_NODE}
    if told or not found:
        return told
    return {min(host.node_by_id, default=0): found[NO_NODE]}


def _checked(host: Host, nodes: tuple[int, ...] | None, found: dict[int, list[AllowedCore]]) -> tuple[int, ...]:
    if not found:
        raise PlacementError(
            "insufficient_cpus",
            "there is no CPU to compute on",
            seen=f"allowed CPUs {format_cpu_list(host.allowance.cpus) or 'none'}",
            wanted="at least one",
            remedy="Allow more CPUs (taskset, Slurm, cpuset).",
        )
    for node in nodes or ():
        if node not in found:
            raise _refused(host, node, found)
    if nodes is not None and not nodes:
        raise PlacementError(
            "bad_node_list",
            "no node to compute on is named",
            seen="''",
            wanted="at least one",
            remedy="Mend --numa-nodes.",
        )
    return tuple(found) if nodes is None else tuple(dict.fromkeys(nodes))


def _refused(host: Host, node: int, found: dict[int, list[AllowedCore]]) -> PlacementError:
    exists = node in host.node_by_id
    return PlacementError(
        "node_without_cpus" if exists else "no_such_node",
        f"NUMA node {node} has no CPU that this process may use" if exists else f"this host has no NUMA node {node}",
        seen=f"--numa-nodes with node {node}",
        wanted=f"nodes among {format_cpu_list(found)}",
        remedy="Name nodes with allowed CPUs only; `homenode host` shows them.",
        param="--numa-nodes",
    )


def _no_core_left(reserve: int, cores: int, on_other_nodes: int) -> UserError:
    return UserError(
        f"--reserve-cpus {reserve}: {format_count(cores, 'physical core is', 'physical cores are')} there to "
        f"compute on and {on_other_nodes} others, so none would be left to compute; "
        f"give {cores + on_other_nodes - 1} or less",
        param="reserve_cpus",
    )


def _within_quota(
    cores: dict[int, list[AllowedCore]], host: Host, threads_per_core: int
) -> dict[int, list[AllowedCore]]:
    """Keep as many cores as the CPU quota (rounded down) lets run at once, one at least."""
    quota, count = host.allowance.cpu_quota, sum(map(len, cores.values()))
    return cores if quota is None else fastest_cores(cores, min(count, max(1, int(quota) // threads_per_core)))


def _shared_out(cores: dict[int, list[AllowedCore]], threads: int, threads_per_core: int) -> dict[int, tuple[int, ...]]:
    """CPUs for exactly `threads` threads."""
    most = sum(len(core.cpus) for own in cores.values() for core in own)
    if threads > most:
        message = (
            f"--threads {threads}: this process may use {format_count(most, 'CPU')} on NUMA node "
            f"{format_cpu_list(cores)}; give {most} or less"
        )
        raise UserError(message, param="threads")
    return fastest_cpus(cores, threads, threads_per_core)


def _first_threads(cores: Sequence[AllowedCore], threads_per_core: int) -> tuple[int, ...]:
    return tuple(cpu for core in cores for cpu in core.cpus[:threads_per_core])


def _team(host: Host, node: int, cpus: tuple[int, ...]) -> NodeTeam:
    memory_node = next(iter(memory_nodes(host, (node,))), node)
    memory = host.node_by_id.get(memory_node)
    return NodeTeam(
        node, memory_node, cpus, None if memory is None else memory.memory if memory.free is None else memory.free
    )
