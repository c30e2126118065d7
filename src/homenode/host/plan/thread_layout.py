"""Compute threads of CPU workers: which CPUs of a core, which nodes for which rank, and what is kept for everything
else. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.resources.cores import AllowedCore, allowed_cores, deal_in_turn
from homenode.host.plan.variables import THREADS_BIND_FLAG
from homenode.host.topology.host import Host, Node
from homenode.units import format_count

_LAST_SIBLING = ("x86_64", "i386", "i686", "amd64", "s390x")
_ALL_SIBLINGS = ("aarch64", "arm64", "arm", "riscv")  # the beginnings of machine names


def every_thread_computes(machine: str) -> bool:
    """Arm and RISC-V, whose cores mostly have one thread: every CPU computes, and each rank gives one CPU of its own to
    the reserve."""
    return machine.startswith(_ALL_SIBLINGS)


def compute_cpus(host: Host, core: AllowedCore) -> tuple[int, ...]:
    """The allowed CPUs of a core that compute, as in the field: x86 and s390x the last sibling, POWER four of eight,
    Arm and RISC-V all. Elsewhere the first.

    The field writes the rule for POWER as id % 8 < 4, which leaves every second core idle where cores have four
    threads; here it is the first four threads of a core, and the numbers count only where the kernel does not tell the
    siblings. Empty then for the upper half.
    """
    if every_thread_computes(host.machine):
        return core.cpus
    if host.machine.startswith("ppc"):
        siblings = host.cores[core.id]
        lower = siblings[:4] if len(siblings) > 1 else tuple(cpu for cpu in siblings if cpu % 8 < 4)
        return tuple(cpu for cpu in core.cpus if cpu in lower) or (core.cpus[:1] if len(siblings) > 1 else ())
    return core.cpus[-1:] if host.machine in _LAST_SIBLING else core.cpus[:1]


def computing_nodes(host: Host, nodes: Sequence[Node]) -> dict[int, dict[AllowedCore, tuple[int, ...]]]:
    """Return by node the cores that compute, with their CPUs that do, neighbours in a cache next to each other. A node
    without any is left out.

    Where nodes share CPUs (emulated nodes, broken firmware) the first of them has the core.
    """
    left = [core for cores in allowed_cores(host).values() for core in cores]
    found: dict[int, dict[AllowedCore, tuple[int, ...]]] = {}
    for node in nodes:
        own = set(node.cpus)
        here = [core for core in left if core.cpus[0] in own]
        left = [core for core in left if core.cpus[0] not in own]
        computing = {core: cpus for core in here if (cpus := compute_cpus(host, core))}
        if here:
            found[node.id] = computing or {core: core.cpus[:1] for core in here}
    return found


def ranks_on_nodes(cores: Sequence[int], ranks: int, share_cores: bool = False) -> list[int]:
    """Return how many ranks each node gets; `cores`: of each node. One for each while nodes last, then where most cores
    would be left for each.

    Fewer ranks than nodes leave the last nodes without any. Raises PlacementError insufficient_cpus for more ranks than
    cores, unless these may `share_cores`.
    """
    if sum(cores) < ranks and not share_cores:
        raise insufficient_cpus(
            f"{format_count(ranks, 'CPU worker')} do not fit",
            format_count(sum(cores), "allowed core"),
            f"a core for each of {format_count(ranks, 'worker')}",
        )
    given = [int(position < ranks) for position in range(len(cores))]
    for _ in range(ranks - sum(given)):
        given[max(range(len(cores)), key=lambda node: (cores[node] / (given[node] + 1), -node))] += 1
    return given


def rank_pools(
    nodes: Sequence[dict[AllowedCore, tuple[int, ...]]], ranks: int, share_cores: bool = False
) -> list[tuple[int, list[int]]]:
    """Return for each rank the position of its node and its compute CPUs; a node's ranks have contiguous runs of whole
    cores, or one each in turn where there are too few and they may `share_cores`.
    """
    pools = []
    for position, here in enumerate(ranks_on_nodes([len(node) for node in nodes], ranks, share_cores)):
        for run in deal_in_turn(list(nodes[position]), here) if here else ():
            pools.append((position, [cpu for core in run for cpu in nodes[position][core]]))
    return pools


def take_reserve(pools: Sequence[list[int]], count: int) -> list[int]:
    """Take `count` CPUs off the tails of the pools, one from each in turn, the last first. A pool's last CPU stays.

    Raises PlacementError insufficient_cpus when there are not so many.
    """
    spare = sum(len(pool) - 1 for pool in pools)
    if count > spare:
        seen = f"{format_count(sum(map(len, pools)), 'compute CPU')} for {format_count(len(pools), 'worker')}"
        wanted = f"one for each worker and {count} kept"
        raise insufficient_cpus(
            f"{format_count(count, 'CPU')} cannot be kept for other processes",
            seen,
            wanted,
            "lower --reserve-cpus (0 keeps none)",
        )
    taken: list[int] = []
    turn = 0
    while len(taken) < count:
        turn -= 1
        pool = pools[turn % len(pools)]
        if len(pool) > 1:
            taken.append(pool.pop())
    return taken


def keep_cores(
    nodes: dict[int, dict[AllowedCore, tuple[int, ...]]], count: int
) -> tuple[dict[int, dict[AllowedCore, tuple[int, ...]]], list[int]]:
    """The nodes without `count` cores, the last of those with most in turn, and the CPUs of these; for ranks that take
    turns on what is left. Raises PlacementError insufficient_cpus where that is no core.
    """
    total = sum(map(len, nodes.values()))
    if count >= total:
        raise insufficient_cpus(
            f"{format_count(count, 'core')} cannot be kept for other processes",
            format_count(total, "allowed core"),
            f"one to compute and {count} kept",
            "lower --reserve-cpus (0 keeps none)",
        )
    left, kept = {node: dict(cores) for node, cores in nodes.items()}, list[int]()
    for _ in range(count):
        kept += max(left.values(), key=len).popitem()[0].cpus
    return {node: cores for node, cores in left.items() if cores}, kept


def take_parts(pools: Sequence[list[int]], parts: Sequence[int]) -> list[int]:
    """Take so many CPUs off the tail of each pool."""
    return [pool.pop() for pool, part in zip(pools, parts, strict=True) for _ in range(part)]


def take_low_power(host: Host, pools: Sequence[list[int]]) -> list[int]:
    """Take the CPUs of low-power cores out of every pool that has others."""
    taken = list[int]()
    for pool in pools:
        slow = [cpu for cpu in pool if host.cpu_by_id[cpu].low_power]
        if len(slow) < len(pool):
            taken += slow
            pool[:] = [cpu for cpu in pool if cpu not in slow]
    return taken


def with_idle_siblings(host: Host, taken: Sequence[int], busy: Sequence[int]) -> tuple[int, ...]:
    """`taken` and the allowed siblings of these CPUs that nobody computes on, ascending."""
    free = set(host.allowance.cpus) - set(busy)
    siblings = {cpu for one in taken for cpu in host.cores[host.cpu_by_id[one].core]}
    return tuple(sorted(free & siblings))


def insufficient_cpus(message: str, seen: str, wanted: str, more: str = "") -> PlacementError:
    """The refusal of a demand that the allowance is too small for."""
    remedy = "Allow more CPUs, start fewer workers" + (f", or {more}." if more else ".")
    return PlacementError("insufficient_cpus", message, seen=seen, wanted=wanted, remedy=remedy)


def cpus_not_allowed(host: Host, worker: int, cpus: Sequence[int], origin: str) -> PlacementError:
    """The refusal of a list with CPUs that are not there or not allowed. `origin`: the flag or variable that has it."""
    missing = [cpu for cpu in cpus if cpu not in host.cpu_by_id]
    why = f"do not exist or are offline: {format_cpu_list(missing)}" if missing else "may not be used by this process"
    return PlacementError(
        "cpus_not_allowed",
        f"{origin}: CPUs {format_cpu_list(cpus)} of the list of worker {worker} {why}",
        seen=f"CPUs {format_cpu_list(cpus)}",
        wanted=f"CPUs among {format_cpu_list(host.allowance.cpus) or 'none'}",
        remedy=f"Name allowed CPUs only in {origin}, or widen what this process inherits (taskset, Slurm, cpuset).",
        param=THREADS_BIND_FLAG,
    )
