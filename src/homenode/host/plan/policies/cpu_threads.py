"""`cpu-threads`: workers that compute on CPUs, placed as vLLM's CPU backend places them (VLLM_CPU_OMP_THREADS_BIND),
without its traps.

`auto`: rank r computes on the r-th node that has allowed CPUs and usable memory, one thread a core. More ranks than
nodes split the nodes by cores; with fewer, the last nodes stay free. A few CPUs are kept for everything else, from the
tails of the ranks' CPUs (`reserve_rule`); a reserve that nobody asked for leaves out nodes that are too small for it,
or is kept in part. `nobind`: processes stay as they are. Lists: exactly these CPUs, in this order. Memory comes from
every node that a rank's CPUs span. More ranks than cores are refused, unless they may share them
(`Demand.share_cores`): then they take turns, and what is kept is what was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.parallelism import check_sizes, worker_index, world_size
from homenode.host.plan.plan import Plan, ProcessBinding, WorkerBinding
from homenode.host.plan.ranks import assign_ranks
from homenode.host.plan.reserve_rule import cpus_kept, parts_kept
from homenode.host.plan.resources.cores import AllowedCore
from homenode.host.plan.resources.memory_nodes import memory_nodes
from homenode.host.plan.resources.nodes import memory_of_cpus, nodes_of, working_nodes
from homenode.host.plan.resources.numactl import check_memory_nodes
from homenode.host.plan.strategy import Strategy
from homenode.host.plan.thread_layout import (
    computing_nodes,
    cpus_not_allowed,
    keep_cores,
    rank_pools,
    take_low_power,
    take_parts,
    take_reserve,
    with_idle_siblings,
)
from homenode.host.plan.threads_bind import AUTO, NOBIND, ThreadLists, bad_threads_bind, parse_threads_bind
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
    rule = cpus_kept(host.machine, count, kv_transfer=demand.kv_transfer, version=demand.vllm_version)
    asked, taken, findings = demand.reserve_cpus, list[int](), list[Finding]()
    in_turn = demand.share_cores and sum(map(len, threads.values())) < count
    if in_turn:
        threads, taken = keep_cores(threads, asked or 0)
    elif asked is None and (small := _too_small(threads, count, rule)):
        findings.append(_left_out({node: len(_cpus(threads.pop(node))) for node in small}))
    placed = rank_pools(tuple(threads.values()), count, demand.share_cores)
    pools = [cpus for _, cpus in placed]
    if not in_turn:
        taken = take_parts(pools, parts_kept(pools, rule)) if asked is None else take_reserve(pools, asked)
        findings += _other_than_rule(asked, len(taken), rule)
        taken += take_low_power(host, pools)
    nodes = tuple(threads)
    return _Layout(
        pools=tuple(map(tuple, pools)),
        whys=tuple(
            f"{format_count(len(cpus), 'compute thread')} on cores of node {nodes[position]}"
            for position, cpus in placed
        ),
        reserved=with_idle_siblings(host, taken, [cpu for pool in pools for cpu in pool]),
        findings=(*findings, *_unused(nodes, count)),
    )


def _cpus(cores: Mapping[AllowedCore, Sequence[int]]) -> list[int]:
    return [cpu for cpus in cores.values() for cpu in cpus]


def _too_small(threads: Mapping[int, Mapping[AllowedCore, Sequence[int]]], count: int, rule: int) -> tuple[int, ...]:
    """Nodes on which a rank would have no CPU besides those kept, where the other nodes have enough for all ranks."""
    part = -(-rule // count)
    large = {node: cores for node, cores in threads.items() if len(_cpus(cores)) > part}
    cpus, cores = sum(len(_cpus(own)) for own in large.values()), sum(map(len, large.values()))
    enough = cpus >= count * (part + 1) and cores >= count
    return tuple(node for node in threads if node not in large) if enough else ()


def _left_out(sizes: Mapping[int, int]) -> Finding:
    each = ", ".join(f"node {node} has {format_count(size, 'CPU')}" for node, size in sizes.items())
    message = f"no worker is on nodes that have nothing to compute on besides the CPUs kept: {each}"
    return Finding("info", "nodes_left_out", message, "Give --reserve-cpus 0 to compute on every node.")


def _other_than_rule(asked: int | None, kept: int, rule: int) -> list[Finding]:
    """Return what to say of a reserve that is smaller than the rule's."""
    if kept >= rule:
        return []
    if asked is None:
        message = (
            f"{kept or 'no'} {'CPU is' if kept == 1 else 'CPUs are'} kept for front, scheduler and KV transfer, where "
            f"{rule} would be usual: there are too few CPUs, and all of this shares them with compute threads"
        )
        return [Finding("info", "reserve_not_kept", message, "Allow more CPUs, or start fewer workers.")]
    message = (
        f"{format_count(asked, 'CPU is', 'CPUs are')} kept for front, scheduler and KV transfer; "
        f"{rule} would be usual here"
    )
    remedy = f"Give --reserve-cpus {rule}, or leave it out."
    return [Finding("warning", "reserve_below_rule", message, remedy)]


def _unused(nodes: Sequence[int], count: int) -> list[Finding]:
    idle = nodes[count:]
    if not idle:
        return []
    message = f"nodes {format_cpu_list(idle)} have no worker: there are {count} for {format_count(len(nodes), 'node')}"
    remedy = f"Start {format_count(len(nodes), 'worker')} to use all of them."
    return [Finding("info", "nodes_unused", message, remedy)]


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


def _reserved(host: Host, demand: Demand, layout: _Layout) -> tuple[ProcessBinding, ...]:
    if not layout.reserved:
        return ()
    why = "kept for API server, scheduler and KV transfer: no compute thread runs there"
    return (ProcessBinding("reserved", layout.reserved, _memory(host, demand, layout.reserved), why),)
