"""Where several engines on one host run: disjoint CPUs for each, its memory on the nodes of its CPUs, and what is kept
for the front. Pure.

Without settings the allowed cores are divided: every node among the engines at home there, or every engine several
whole nodes. With them, an engine is a worker of the plan that `homenode plan` would print.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from homenode.cpuset import format_cpu_list
from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.memory.sizing import choose_cpus
from homenode.engine.plan.placement import (
    UNPINNED,
    core_of,
    cut,
    place_worker,
    plan_workers,
    reserved_cores,
    too_few_cores,
)
from homenode.errors import UserError
from homenode.host.placement.core_order import regular_cores
from homenode.host.placement.cores import AllowedCore, allowed_cores, cpus_of, deal
from homenode.host.placement.nodes import memory_of_cpus
from homenode.host.placement.share import set_aside
from homenode.host.placement.thread_layout import ranks_on_nodes
from homenode.host.topology.host import Host
from homenode.units import format_count

_FLAG = "--data-parallel-size"


@dataclass(frozen=True)
class _Words:
    """What runs in the places, and the flags that say how many."""

    what: str
    flags: str


_ENGINES = _Words("engine", _FLAG)


class Team(Protocol):
    """CPUs of one node, one for each compute thread, and the node their memory comes from."""

    @property
    def memory_node(self) -> int: ...

    @property
    def cpus(self) -> tuple[int, ...]: ...


def replica_places(host: Host, config: EngineConfig, count: int) -> tuple[EngineBinding, ...]:
    """A place for each of `count` engines. UserError and PlacementError for what this host cannot meet, naming the flag
    and the numbers.
    """
    return divided_places(host, config, count, "engine", _FLAG)


def divided_places(host: Host, config: EngineConfig, count: int, what: str, flags: str) -> tuple[EngineBinding, ...]:
    """The same for whatever there are `count` of: `what`, because of `flags`."""
    threads, words = config.compute.threads, _Words(what, flags)
    plan, reserve = plan_workers(config.placement, host, workers=count), reserved_cores(config.placement, host)
    if plan is None:
        bindings = _bindings_of(
            host, [(cpus, _memory(host, cpus)) for cpus in _divided(host, threads, count, reserve, words)]
        )
    else:
        wanted = threads if plan.workers[0].bound else threads or max(1, host.allowance.usable_threads // count)
        bindings = tuple(place_worker(plan, worker, wanted, host, reserve) for worker in plan.workers)
    _check_apart(bindings, words)
    return _with_warning(host, bindings, words)


def team_places(host: Host, teams: Sequence[Team]) -> tuple[EngineBinding, ...]:
    """A place for an engine on each of these nodes: its threads on the team's CPUs, all its memory on the
    team's node.
    """
    bindings = _bindings_of(host, [(team.cpus, (team.memory_node,) if host.nodes else ()) for team in teams])
    _check_apart(bindings, _ENGINES)
    return _with_warning(host, bindings, _ENGINES)


def memory_shares(capacities: Sequence[tuple[int, tuple[int, ...]]], total: int) -> tuple[int, ...]:
    """How many bytes each engine may take, so that memory several of them could have is counted once.

    `capacities`: for each engine the bytes free on the nodes it is bound to, and those nodes (empty: not bound, it may
    take from all). `total`: bytes that all of them together may take. Engines that share a node get equal parts of it.
    """
    parts = [size // sum(share_nodes(nodes, others) for _, others in capacities) for size, nodes in capacities]
    promised = sum(parts)
    return tuple(part if promised <= total else part * total // promised for part in parts)


def share_nodes(nodes: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Whether memory bound to these nodes (empty: to none) can be the same."""
    return not nodes or not others or not set(nodes).isdisjoint(others)


def _divided(host: Host, threads: int | None, count: int, reserve: int | None, words: _Words) -> list[tuple[int, ...]]:
    """The CPUs of the compute threads of each engine, out of the whole allowance."""
    pools = dict(enumerate(_pools(allowed_cores(host), count, words)))
    left, _ = set_aside(pools, _kept(sum(map(len, pools.values())), count, reserve, words), {})
    quota = host.allowance.cpu_quota
    allowance = replace(host.allowance, cpu_quota=None if quota is None else quota / count)
    teams = []
    for number, pool in left.items():
        own = cut(host, allowance, cpus_of(pool if threads is not None else regular_cores(pool)))
        if threads is not None and threads > len(own.cpus):
            raise UserError(
                f"--threads {threads}: of {count} {words.what}s ({words.flags}) {words.what} {number} has "
                f"{format_count(len(own.cpus), 'CPU')}, "
                f"{format_cpu_list(own.cpus)}; give {min(len(cpus_of(p)) for p in left.values())} or less",
                param="threads",
            )
        wanted = threads if threads is not None else own.usable_threads
        teams.append(choose_cpus(wanted, replace(host, allowance=own)))
    return teams


def _pools(cores: Mapping[int, Sequence[AllowedCore]], count: int, words: _Words) -> list[list[AllowedCore]]:
    """Every node divided among its engines where there are as many as nodes; else to each engine its run of whole
    nodes.
    """
    nodes = list(cores.values())
    total = sum(map(len, nodes))
    if total < count:
        raise UserError(
            f"{words.flags} {count}: this process may use {format_count(total, 'physical core')}, and each "
            f"{words.what} computes on one at least; give {total} or less",
            param=words.flags.removeprefix("--").replace("-", "_"),
        )
    if count >= len(nodes):
        seats = ranks_on_nodes([len(node) for node in nodes], count)
        return [run for node, here in zip(nodes, seats, strict=True) if here for run in deal(node, here)]
    bounds = [len(nodes) * part // count for part in range(count + 1)]
    return [[core for node in nodes[begin:end] for core in node] for begin, end in pairwise(bounds)]


def _kept(total: int, count: int, reserve: int | None, words: _Words) -> int:
    """Cores without a compute thread: as many as is said, else one where that leaves all engines something and there
    are more than two.
    """
    if reserve is None:
        return 1 if total > max(2, count) else 0
    if total - reserve < count:
        raise UserError(
            f"--reserve-cpus {reserve}: this process may use {format_count(total, 'physical core')}, and "
            f"{words.flags} {count} computes on {count} at least; "
            f"give {max(0, total - count)} or less",
            param="reserve_cpus",
        )
    return reserve


def _bindings_of(host: Host, teams: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> tuple[EngineBinding, ...]:
    """Places from the CPUs and memory nodes of each. The other threads of an engine go to a free core of its nodes, or
    else stay on its own cores: they are to disturb no other engine.
    """
    taken = {core_of(host, cpu) for cpus, _ in teams for cpu in cpus}
    spare = tuple(cpu for cpu in host.allowance.cpus if core_of(host, cpu) not in taken)
    bindings = []
    for cpus, memory in teams:
        nodes = {host.cpu_by_id[cpu].node for cpu in cpus}
        near = tuple(cpu for cpu in spare if host.cpu_by_id[cpu].node in nodes)
        own = {core_of(host, cpu) for cpu in cpus}
        others = near or tuple(cpu for cpu in host.allowance.cpus if core_of(host, cpu) in own)
        bindings.append(EngineBinding(cpus, others, memory, spare=spare))
    return tuple(bindings)


def _memory(host: Host, cpus: tuple[int, ...]) -> tuple[int, ...]:
    """Nodes to bind memory to; none where there is no choice to make."""
    return memory_of_cpus(host, cpus) if len(host.nodes) > 1 else ()


def _check_apart(bindings: Sequence[EngineBinding], words: _Words) -> None:
    owner: dict[int, int] = {}
    for number, binding in enumerate(bindings):
        for cpu in binding.team:
            other = owner.setdefault(cpu, number)
            if cpu != UNPINNED and other != number:
                raise UserError(
                    f"{words.what}s {other} and {number} would both compute on CPU {cpu}; give each of them CPUs of "
                    "its own "
                    "(--cpu-threads-bind LIST|LIST, or --numa-bind-cpus), or leave the lists out",
                    param="cpu_threads_bind",
                )


def _with_warning(host: Host, bindings: tuple[EngineBinding, ...], words: _Words) -> tuple[EngineBinding, ...]:
    """With what is to be said of all of them together."""
    everybody = EngineBinding(tuple(cpu for binding in bindings for cpu in binding.team))
    said = too_few_cores(host, everybody, len(bindings), words.what)
    return tuple(replace(binding, findings=(*binding.findings, *said)) for binding in bindings)
