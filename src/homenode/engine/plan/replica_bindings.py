"""Places of several engines on one host: disjoint CPUs for each, its memory on the nodes of its CPUs, and what is kept
for the front. Pure.

Without settings the allowed cores are divided: every node among the engines at home there, or every engine several
whole nodes. With them, an engine is a worker of the plan that `homenode plan` would print; lists may also name the
places of all workers of all engines, as in the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from homenode.cpuset import format_cpu_list
from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig, PlacementConfig
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
from homenode.host.plan.plan import Plan
from homenode.host.plan.resources.core_order import regular_cores
from homenode.host.plan.resources.cores import AllowedCore, allowed_cores, cpus_of, deal, deal_in_turn
from homenode.host.plan.resources.nodes import memory_of_cpus
from homenode.host.plan.resources.share import set_aside
from homenode.host.plan.strategy import Strategy
from homenode.host.plan.thread_layout import ranks_on_nodes
from homenode.host.plan.threads_bind import AUTO, parse_threads_bind
from homenode.host.plan.variables import threads_bind, threads_bind_origin
from homenode.host.topology.host import Host
from homenode.units import format_count

_FLAG = "--data-parallel-size"


@dataclass(frozen=True)
class _Words:
    """The name of what runs in the places, and the flags that say how many."""

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
    if config.placement.numa is not None:
        raise UserError(
            f"--numa {config.placement.numa} and --data-parallel-size {count} both divide this host; give one of them "
            "(--numa replicate is an engine for each NUMA node)",
            param="numa",
        )
    each = config.parallel.workers
    if each > 1 and count * each in _entries(config.placement, host):
        flags = f"{_FLAG} x --pipeline-parallel-size x --tensor-parallel-size"
        places = divided_places(host, config, count * each, "worker", flags)
        return tuple(_of_workers(places[n * each : (n + 1) * each]) for n in range(count))
    places = divided_places(host, config, count, "engine", _FLAG)
    return _with_warning(host, places, _ENGINES)


def _entries(placement: PlacementConfig, host: Host) -> tuple[int, ...]:
    """Return how many entries the lists have that name CPUs or nodes."""
    if placement.numa_bind:
        return len(placement.numa_bind_nodes), len(placement.numa_bind_cpus)
    origin = threads_bind_origin(placement.cpu_threads_bind, host.variables)
    lists = parse_threads_bind(threads_bind(placement.cpu_threads_bind, host.variables) or AUTO, origin)
    return (len(lists),) if isinstance(lists, tuple) else ()


def _of_workers(places: Sequence[EngineBinding]) -> EngineBinding:
    """The place of an engine whose workers have these."""
    return EngineBinding(
        tuple(cpu for place in places for cpu in place.team),
        tuple(dict.fromkeys(cpu for place in places for cpu in place.others)),
        tuple(dict.fromkeys(node for place in places for node in place.memory_nodes)),
        places[0].findings,
        workers=tuple(replace(place, findings=()) for place in places),
    )


def divided_places(
    host: Host, config: EngineConfig, count: int, what: str, flags: str, share_cores: bool = False
) -> tuple[EngineBinding, ...]:
    """The same for whatever there are `count` of: `what`, because of `flags`. `share_cores`: where there are more than
    cores, or settings leave too few to them, they take turns; else that is refused.
    """
    threads, words = config.compute.threads, _Words(what, flags)
    in_turn = share_cores and len(host.allowance.physical_cpus) < count
    named, reserve = names_cpus(config.placement, host), reserved_cores(config.placement, host)
    if in_turn and reserve and not named:
        host, reserve = _without_last_cores(host, reserve), 0
        config = replace(config, placement=replace(config.placement, reserve_cpus=0))
    plan = plan_workers(config.placement, host, workers=count, share_cores=share_cores)
    if plan is None:
        divided = _in_turn(host, count) if in_turn else _divided(host, threads, count, reserve, words)
        bindings = _bindings_of(host, [(cpus, _memory(host, cpus)) for cpus in divided])
    else:
        wanted = threads if plan.workers[0].bound else threads or max(1, host.allowance.usable_threads // count)
        kept = _kept_of_each(host, plan, reserve, words)
        bindings = tuple(
            place_worker(plan, worker, wanted, host, own) for worker, own in zip(plan.workers, kept, strict=True)
        )
    if not share_cores or (named and not in_turn):
        _check_apart(bindings, words)
    return bindings


def _without_last_cores(host: Host, reserve: int) -> Host:
    """The host with the last `reserve` cores kept free of compute threads. UserError where that leaves none."""
    cores = host.allowance.physical_cpus
    if reserve >= len(cores):
        raise UserError(
            f"--reserve-cpus {reserve}: this process may use {format_count(len(cores), 'physical core')}, so none "
            f"would be left to compute; give {len(cores) - 1} or less",
            param="reserve_cpus",
        )
    kept = {core_of(host, cpu) for cpu in cores[len(cores) - reserve :]}
    left = tuple(cpu for cpu in host.allowance.cpus if core_of(host, cpu) not in kept)
    return replace(host, allowance=cut(host, host.allowance, left))


def _in_turn(host: Host, count: int) -> list[tuple[int, ...]]:
    """The CPU of each of more workers than there are cores: neighbours on the same."""
    pools = list(allowed_cores(host).values())
    seats = ranks_on_nodes([len(pool) for pool in pools], count, share_cores=True)
    runs = [run for pool, here in zip(pools, seats, strict=True) if here for run in deal_in_turn(pool, here)]
    return [cpus_of(run)[:1] for run in runs]


def names_cpus(placement: PlacementConfig, host: Host) -> bool:
    """Return whether lists of CPUs were given."""
    return bool(placement.numa_bind_cpus) or (not placement.numa_bind and bool(_entries(placement, host)))


def _kept_of_each(host: Host, plan: Plan, reserve: int | None, words: _Words) -> list[int | None]:
    """Return how many cores each worker of a plan of nodes leaves free, of `reserve` in all; None where nothing is
    said.
    """
    if reserve is None or plan.strategy != Strategy.NUMA_BIND:
        return [reserve] * len(plan.workers)
    cores = [core for found in allowed_cores(host).values() for core in found]
    pools = {
        number: [core for core in cores if not set(core.cpus).isdisjoint(worker.cpus)]
        for number, worker in enumerate(plan.workers)
    }
    computing = len({core for pool in pools.values() for core in pool})
    if computing < len(pools):  # they take turns, and what is kept has to be elsewhere
        if reserve > (free := len(cores) - computing):
            raise UserError(
                f"--reserve-cpus {reserve}: --numa-bind has {format_count(len(pools), words.what)} take turns on "
                f"{format_count(computing, 'physical core')} of {len(cores)}; give {free} or less",
                param="reserve_cpus",
            )
        return [0] * len(pools)
    left, _ = set_aside(pools, _kept(sum(map(len, pools.values())), len(pools), reserve, words), {})
    return [len(pools[number]) - len(left[number]) for number in pools]


def team_places(host: Host, teams: Sequence[Team]) -> tuple[EngineBinding, ...]:
    """A place for an engine on each of these nodes: its threads on the team's CPUs, all its memory on the
    team's node.
    """
    bindings = _bindings_of(host, [(team.cpus, (team.memory_node,) if host.nodes else ()) for team in teams])
    _check_apart(bindings, _ENGINES)
    return _with_warning(host, bindings, _ENGINES)


def memory_shares(capacities: Sequence[tuple[int, tuple[int, ...]]], total: int) -> tuple[int, ...]:
    """Return how many bytes each engine may take, so that memory several of them could have is counted once.

    `capacities`: for each engine the bytes free on the nodes it is bound to, and those nodes (empty: not bound, it may
    take from all). `total`: bytes that all of them together may take. Engines that share a node get equal parts of it.
    """
    parts = [size // sum(share_nodes(nodes, others) for _, others in capacities) for size, nodes in capacities]
    promised = sum(parts)
    return tuple(part if promised <= total else part * total // promised for part in parts)


def share_nodes(nodes: tuple[int, ...], others: tuple[int, ...]) -> bool:
    """Return whether memory bound to these nodes (empty: to none) can be the same."""
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
    """Return the bindings with what is to be said of all of them together."""
    everybody = EngineBinding(tuple(cpu for binding in bindings for cpu in binding.team))
    said = too_few_cores(host, everybody, len(bindings), words.what)
    return tuple(replace(binding, findings=(*binding.findings, *said)) for binding in bindings)
