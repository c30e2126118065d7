"""`cpu-threads`: workers that compute on CPUs, placed as vLLM's CPU backend places them (VLLM_CPU_OMP_THREADS_BIND),
without its traps.

`auto`: rank r computes on the r-th node that has allowed CPUs and usable memory, one thread a core. More ranks than
nodes split the nodes by cores; with fewer, the last nodes stay free. A few CPUs are kept for everything else, from the
tails of the ranks' CPUs, the last rank first. `nobind`: processes stay as they are. Lists: exactly these CPUs, in this
order. Memory comes from every node that a rank's CPUs span. More ranks than cores are refused, unless they may share
them (`Demand.share_cores`): then they take turns, and what is kept is what was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.placement.demand import Demand
from homenode.host.placement.memory_nodes import memory_nodes
from homenode.host.placement.nodes import memory_of_cpus, nodes_of, working_nodes
from homenode.host.placement.numactl import check_memory_nodes
from homenode.host.placement.parallelism import check_sizes, worker_index, world_size
from homenode.host.placement.plan import Plan, ProcessBinding, WorkerBinding
from homenode.host.placement.ranks import assign_ranks
from homenode.host.placement.strategy import Strategy
from homenode.host.placement.thread_layout import (
    computing_nodes,
    cpus_not_allowed,
    every_thread_computes,
    keep_cores,
    rank_pools,
    take_reserve,
    with_idle_siblings,
)
from homenode.host.placement.threads_bind import AUTO, NOBIND, ThreadLists, bad_threads_bind, parse_threads_bind
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host, Node
from homenode.units import format_count


@dataclass(frozen=True, slots=True)
class _Layout:
    """CPUs of each rank in the order of its threads, why it has them, and CPUs that nobody computes on."""

    pools: tuple[tuple[int, ...], ...]
    whys: tuple[str, ...]
    reserved: tuple[int, ...] = ()
    findings: tuple[Finding, ...] = ()


def plan(host: Host, demand: Demand) -> Plan:
    """Place every CPU worker.

    Raises PlacementError: bad_threads_bind, cpus_not_allowed, insufficient_cpus, affinity_conflict, no_such_node,
    nodes_not_allowed, rank_out_of_range, bad_parallelism.
    """
    check_sizes(demand)
    count = demand.workers or world_size(demand.parallelism)
    check_memory_nodes(host, demand.memory_nodes or (), demand.memory_nodes_origin)
    wanted = parse_threads_bind(demand.threads_bind, demand.threads_bind_origin)
    if isinstance(wanted, tuple):
        layout = _listed(host, demand, count, wanted)
    else:
        layout = (
            _automatic_or_refused(host, demand, count)
            if wanted == AUTO
            else _Layout(((),) * count, (f"left as it is: {NOBIND}",) * count)
        )
    bound = wanted != NOBIND
    return Plan(
        strategy=Strategy.CPU_THREADS,
        devices_total=count,
        devices_running=tuple(range(count)),
        pools=dict(enumerate(layout.pools)) if bound else {},
        workers=tuple(_worker(host, demand, layout, index, bound) for index in _asked(demand, count)),
        processes=_reserved(host, demand, layout),
        findings=layout.findings,
    )


def _asked(demand: Demand, count: int) -> Sequence[int]:
    """The workers that are asked for."""
    if demand.local_rank is None:
        return range(count)
    index = worker_index(demand.parallelism, demand.local_rank)
    return tuple(assign_ranks(range(count), index, single=False, origin=demand.local_rank_origin).devices)


def _worker(host: Host, demand: Demand, layout: _Layout, index: int, bound: bool) -> WorkerBinding:
    cpus = layout.pools[index]
    rank = index if demand.local_rank is None else demand.local_rank
    return WorkerBinding(
        rank, index, cpus, {"main": cpus} if bound else {}, _memory(host, demand, cpus), layout.whys[index], bound
    )


def _memory(host: Host, demand: Demand, cpus: Sequence[int]) -> tuple[int, ...]:
    """Nodes for the memory of a process on `cpus`: those that it spans and the user lets it use, or the nearest of the
    latter."""
    memories = memory_of_cpus(host, cpus)
    if demand.memory_nodes is None or not memories:
        return memories
    nearest = sorted(demand.memory_nodes, key=lambda node: (host.distance(memories[0], node), node))
    return tuple(node for node in memories if node in demand.memory_nodes) or memory_nodes(host, nearest)[:1]


def _listed(host: Host, demand: Demand, count: int, lists: ThreadLists) -> _Layout:
    """The lists as they are: nothing is kept from them, and a CPU that may not be used is refused."""
    if len(lists) != count:
        why = f"has {format_count(len(lists), 'list')} for {format_count(count, 'worker')}"
        wanted = (
            "one list, for the only worker"
            if count == 1
            else f"{format_count(count, 'list')} joined by |, one for each worker"
        )
        raise bad_threads_bind(demand.threads_bind, why, wanted, demand.threads_bind_origin)
    allowed = set(host.allowance.cpus)
    for worker, cpus in enumerate(lists):
        if outside := [cpu for cpu in cpus if cpu not in allowed]:
            raise cpus_not_allowed(host, worker, outside, demand.threads_bind_origin)
    findings: tuple[Finding, ...] = ()
    if demand.reserve_cpus:
        message = f"--reserve-cpus {demand.reserve_cpus} is ignored: CPU lists are taken as they are"
        findings = (
            Finding("warning", "reserve_ignored", message, "Leave the CPUs that are to be kept out of the lists."),
        )
    return _Layout(lists, ("the CPUs listed for it",) * count, (), findings)


def _automatic_or_refused(host: Host, demand: Demand, count: int) -> _Layout:
    """`_automatic`; a refusal for too few CPUs names the setting that chooses them."""
    try:
        return _automatic(host, demand, count)
    except PlacementError as error:
        if error.code != "insufficient_cpus":
            raise
        nodes = demand.memory_nodes
        by = f"{demand.threads_bind_origin} {AUTO}"
        by = by if nodes is None else f"{demand.memory_nodes_origin} {format_cpu_list(nodes)}"
        raise PlacementError(
            error.code,
            f"{by}: {error.summary}",
            seen=error.seen,
            wanted=error.wanted,
            remedy=error.remedy,
            param=error.param,
        ) from None


def _automatic(host: Host, demand: Demand, count: int) -> _Layout:
    threads = computing_nodes(host, _nodes(host, demand))
    nodes, findings, taken = tuple(threads), list[Finding](), list[int]()
    in_turn = demand.share_cores and sum(map(len, threads.values())) < count
    if in_turn:
        threads, taken = keep_cores(threads, demand.reserve_cpus or 0)
        nodes = tuple(threads)
    placed = rank_pools(tuple(threads.values()), count, demand.share_cores)
    pools = [cpus for _, cpus in placed]
    if not in_turn:
        reserve, findings = _reserve(host, demand, count)
        taken = take_reserve(pools, reserve)
    if idle := nodes[count:]:
        message = (
            f"nodes {format_cpu_list(idle)} have no worker: there are {count} for {format_count(len(nodes), 'node')}"
        )
        findings.append(
            Finding("info", "nodes_unused", message, f"Start {format_count(len(nodes), 'worker')} to use all of them.")
        )
    return _Layout(
        pools=tuple(map(tuple, pools)),
        whys=tuple(
            f"{format_count(len(cpus), 'compute thread')} on cores of node {nodes[position]}"
            for position, cpus in placed
        ),
        reserved=with_idle_siblings(host, taken, [cpu for pool in pools for cpu in pool]),
        findings=tuple(findings),
    )


def _nodes(host: Host, demand: Demand) -> list[Node]:
    """The nodes to compute on, ascending."""
    wanted = demand.memory_nodes
    nodes = [node for node in working_nodes(host) if wanted is None or node.id in wanted]
    if nodes:
        return nodes
    chosen = [node for node in nodes_of(host) if wanted is None or node.id in wanted]
    raise PlacementError(
        "affinity_conflict",
        "no memory node to compute on has a CPU that this process may use",
        seen=f"nodes {format_cpu_list(node.id for node in chosen) or 'none'}, allowed CPUs "
        f"{format_cpu_list(host.allowance.cpus) or 'none'}",
        wanted="a node with memory and allowed CPUs",
        remedy=f"Name other nodes with {demand.memory_nodes_origin}, or widen what this process inherits (taskset, "
        "Slurm, cpuset).",
    )


def _reserve(host: Host, demand: Demand, count: int) -> tuple[int, list[Finding]]:
    """CPUs to keep: the field's rule, unless the user says otherwise."""
    rule = (count if every_thread_computes(host.machine) else 1) + demand.kv_transfer
    if demand.reserve_cpus is None or demand.reserve_cpus >= rule:
        return (rule if demand.reserve_cpus is None else demand.reserve_cpus), []
    message = (
        f"{format_count(demand.reserve_cpus, 'CPU is', 'CPUs are')} kept for front, scheduler and KV transfer; "
        f"{rule} would be usual here"
    )
    return demand.reserve_cpus, [
        Finding("warning", "reserve_below_rule", message, f"Give --reserve-cpus {rule}, or leave it out.")
    ]


def _reserved(host: Host, demand: Demand, layout: _Layout) -> tuple[ProcessBinding, ...]:
    if not layout.reserved:
        return ()
    why = "kept for API server, scheduler and KV transfer: no compute thread runs there"
    return (ProcessBinding("reserved", layout.reserved, _memory(host, demand, layout.reserved), why),)
