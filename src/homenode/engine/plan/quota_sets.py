"""Places of compute threads under a quota of CPU time that is smaller than the CPUs allowed: in sets. Pure.

A quota (`docker run --cpus=4`, a pod's CPU limit) says how much CPU time there is, and not on which CPUs. All such
containers of a host see the same CPUs and no claims of each other: bound to single CPUs, all of them would compute on
the same few. So each thread may use the CPUs of its node that nobody claims, of cores that are no slower than the
engine's, and the kernel keeps it off those that are busy. Its memory is on its node as before. What does not compute
may use these CPUs, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.plan.free_cores import binds_threads, takes_lists
from homenode.engine.plan.placement import UNPINNED, core_of
from homenode.host.plan.neighbours import CoreUse, HostNeighbours, core_uses
from homenode.host.topology.host import Host


def takes_sets(host: Host, config: EngineConfig) -> bool:
    """Return whether threads are bound to sets of CPUs. Lists of CPUs are obeyed as they are written."""
    quota, cores = host.allowance.cpu_quota, len(host.allowance.physical_cpus)
    return quota is not None and quota < cores and binds_threads(config) and not takes_lists(config.placement, host)


def with_sets(host: Host, bindings: Sequence[EngineBinding], neighbours: HostNeighbours) -> tuple[EngineBinding, ...]:
    """The places of workers or engines, each thread with its set: the free cores of its node that no other of these
    computes on. `host`: all that this process may use."""
    uses = core_uses(host, neighbours)
    teams = [{core_of(host, cpu) for cpu in binding.team if cpu != UNPINNED} for binding in bindings]
    found = []
    for number, binding in enumerate(bindings):
        others = set().union(*(team for n, team in enumerate(teams) if n != number))
        found.append(_with_sets(uses, binding, teams[number], others))
    return tuple(found)


def _with_sets(uses: Sequence[CoreUse], binding: EngineBinding, own: set[int], others: set[int]) -> EngineBinding:
    mine = [use.core for use in uses if use.core.id in own]
    if not mine or UNPINNED in binding.team:
        return binding
    least = min(core.standing for core in mine)
    free = [use.core for use in uses if use.free and use.core.id not in own | others and use.core.standing >= least]
    sets = []
    for cpu in binding.team:
        node = next((core.node for core in mine if cpu in core.cpus), None)
        sets.append(tuple(sorted({cpu, *(c for core in (*mine, *free) if core.node == node for c in core.cpus)})))
    found = replace(binding, sets=tuple(sets))
    rest, spare = with_cpus_of_sets(binding.others, [found]), with_cpus_of_sets(binding.spare, [found])
    return replace(found, others=rest, spare=spare)


def with_cpus_of_sets(rest: tuple[int, ...], bindings: Sequence[EngineBinding]) -> tuple[int, ...]:
    """The CPUs of what does not compute, with those of the sets; none, for anywhere, if there were none."""
    return rest and tuple(sorted({*rest, *(cpu for binding in bindings for own in binding.sets for cpu in own)}))
