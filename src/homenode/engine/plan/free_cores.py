"""The way in which an engine keeps clear of the CPUs that others on its host compute on: before it is planned the host
is narrowed to what is free, so that every policy chooses among that; afterwards it is said with whom it shares. Pure.

With `--threads N`: N free cores, quiet ones first; too few of them, and the least used others. Without: all that are
free, if those are half of what the engine would take by itself; else as many as by itself, the free ones among them.

Where settings name nodes the cores of each are looked at by themselves, and a node without enough of them is taken as
it is; lists of CPUs are taken as they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from homenode.cpuset import format_cpu_list
from homenode.engine.config import EngineConfig, PlacementConfig
from homenode.engine.plan.placement import core_of, cut, reserved_cores
from homenode.host.plan.demand import Claim
from homenode.host.plan.neighbours import CoreUse, HostNeighbours, claimed_cores, core_uses, least_used, title
from homenode.host.plan.numa.node_teams import spare_cores
from homenode.host.plan.resources.core_order import regular_cores
from homenode.host.plan.resources.cores import allowed_cores
from homenode.host.plan.threads_bind import AUTO
from homenode.host.plan.variables import memory_nodes, threads_bind
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.units import format_count

NEIGHBOUR = "neighbour_on_host"  # code of what is said of those whom an engine keeps clear of
SHARED = "cores_shared"  # and of those with whom it shares


@dataclass(frozen=True)
class _Wanted:
    """Cores for `teams` teams of `threads` threads each (None: as many as there are cores), and `reserve` cores without
    any (None: the usual one). `quota`: CPUs' worth of time."""

    teams: int
    threads: int | None
    reserve: int | None
    quota: float | None

    def enough(self, uses: Sequence[CoreUse], all_cores: Sequence[CoreUse]) -> bool:
        """Return whether these cores do, of all that there are."""
        computing = uses[: max(0, len(uses) - (self.reserve or 0))]
        if len(computing) < max(1, self.teams):
            return False
        if self.threads is not None:
            return sum(len(use.core.cpus) for use in computing) >= self.threads * max(1, self.teams)
        regular = {core.id for core in regular_cores([use.core for use in all_cores])}
        return 2 * sum(use.core.id in regular for use in computing) >= self.alone(all_cores)

    def alone(self, all_cores: Sequence[CoreUse]) -> int:
        """Return how many cores compute where nobody else is: low-power ones only if there are no others."""
        kept = spare_cores(len(all_cores)) if self.reserve is None else self.reserve
        regular = len(regular_cores([use.core for use in all_cores]))
        most = regular if self.quota is None else min(regular, int(self.quota))
        return max(1, self.teams, min(most, len(all_cores) - kept))


def keep_clear(host: Host, config: EngineConfig, teams: int, neighbours: HostNeighbours) -> tuple[Host, EngineConfig]:
    """The host as far as it is free, and the settings to plan by there. `teams`: of compute threads, those of all
    engines and their CPU workers."""
    placement = config.placement
    if not neighbours or not teams or takes_lists(placement, host):
        return host, config
    wanted = _Wanted(teams, config.compute.threads, reserved_cores(placement, host), host.allowance.cpu_quota)
    if _names_nodes(placement, host):
        return _clear_on_nodes(
            host, wanted, neighbours, any_one=placement.numa == "local" and not placement.numa_nodes
        ), config
    uses = core_uses(host, neighbours)
    pool = _pool(uses, wanted)
    if pool is not None:
        return (host if len(pool) == len(uses) else _narrowed(host, uses, pool)), config
    taken = least_used(uses)[: _fewest(least_used(uses), wanted)]
    # All of them compute: which cores are kept was decided here.
    settings = replace(config, placement=replace(placement, reserve_cpus=0))
    return _narrowed(host, uses, taken), settings


def binds_threads(config: EngineConfig) -> bool:
    """Return whether its CPUs are its own while it computes; NumPy's threads are wherever the kernel puts them."""
    return config.compute.backend != "reference"


def takes_lists(placement: PlacementConfig, host: Host) -> bool:
    """Return whether settings say which CPUs to compute on, or that no thread is bound to any."""
    lists = threads_bind(placement.cpu_threads_bind, host.variables)
    return bool(placement.numa_bind_cpus) or (lists is not None and lists.strip() != AUTO)


def _names_nodes(placement: PlacementConfig, host: Host) -> bool:
    """Return whether settings say which nodes to compute on, or that it is to be one."""
    return bool(
        placement.numa_bind
        or placement.numa_nodes
        or placement.numa == "local"
        or threads_bind(placement.cpu_threads_bind, host.variables)
        or memory_nodes(placement.memory_nodes, host.variables) is not None
    )


def _pool(uses: Sequence[CoreUse], wanted: _Wanted) -> Sequence[CoreUse] | None:
    """The cores to choose among; None where those that nobody claims are too few. A number of threads that nobody asked
    for does not depend on who happens to run for a moment."""
    free = [use for use in uses if use.free]
    if wanted.threads is None:
        return free if wanted.enough(free, uses) else None
    quiet = [use for use in free if use.quiet]
    return quiet if wanted.enough(quiet, uses) else None


def _fewest(uses: Sequence[CoreUse], wanted: _Wanted) -> int:
    """Return how many of these cores compute, where it is not enough that cores are free."""
    if wanted.threads is None:
        return wanted.alone(uses)
    without = replace(wanted, reserve=0)
    return next((n for n in range(1, len(uses)) if without.enough(uses[:n], uses)), len(uses))


def _pool_of_node(uses: Sequence[CoreUse], wanted: _Wanted) -> Sequence[CoreUse] | None:
    """The quiet cores of a node, else those that nobody claims; None where these are too few."""
    free = [use for use in uses if use.free]
    return _pool(uses, wanted) or (free if wanted.enough(free, uses) else None)


def _clear_on_nodes(host: Host, wanted: _Wanted, neighbours: HostNeighbours, *, any_one: bool) -> Host:
    """`any_one`: any node will do, so that those without enough are left out where another has it."""
    by_node = [core_uses(host, neighbours, (node,)) for node in allowed_cores(host)]
    pools = [_pool_of_node(own, wanted) for own in by_node]
    if any_one and any(pool is not None for pool in pools):
        kept = [use for pool in pools for use in pool or ()]
    else:
        kept = [use for own, pool in zip(by_node, pools, strict=True) for use in (own if pool is None else pool)]
    uses = [use for own in by_node for use in own]
    return host if len(kept) == len(uses) else _narrowed(host, uses, kept)


def _narrowed(host: Host, uses: Sequence[CoreUse], taken: Iterable[CoreUse]) -> Host:
    """The host with the cores that were taken of all its `uses`; what nobody claims of the others is beside them."""
    chosen = list(taken)
    left = (use for use in uses if use.free and use not in chosen)
    allowance = cut(host, host.allowance, tuple(cpu for use in chosen for cpu in use.core.cpus))
    beside = tuple(sorted(cpu for use in left for cpu in use.core.cpus))
    return replace(host, allowance=replace(allowance, beside=beside))


def cpus_for_the_rest(host: Host, team: Sequence[int], neighbours: HostNeighbours) -> tuple[int, ...]:
    """Return where what does not compute disturbs no neighbour: cores on which nobody computes, else the
    engine's own.
    """
    own = {core_of(host, cpu) for cpu in team}
    others = {core for claim in neighbours.claims for core in claimed_cores(host, claim)}
    free = tuple(cpu for cpu in host.allowance.cpus if core_of(host, cpu) not in own | others)
    return free or tuple(cpu for cpu in host.allowance.cpus if core_of(host, cpu) in own)


def neighbour_findings(host: Host, team: Sequence[int], neighbours: HostNeighbours) -> tuple[Finding, ...]:
    """Return who computes on this host besides, and whom these compute threads share cores with."""
    own = {core_of(host, cpu) for cpu in team}
    allowed = {core_of(host, cpu) for cpu in host.allowance.cpus}
    found = []
    for claim in neighbours.claims:
        theirs = claimed_cores(host, claim)
        if shared := own & theirs:
            cpus = [cpu for cpu in team if core_of(host, cpu) in shared]
            found.append(_shared(host, claim, cpus, _free(host, own, neighbours)))
        elif theirs & allowed:
            found.append(Finding("info", NEIGHBOUR, f"{title(claim)} has CPUs {format_cpu_list(claim.cpus)}"))
    return tuple(found)


def _free(host: Host, own: set[int], neighbours: HostNeighbours) -> tuple[int, ...]:
    """One CPU of each core on which nobody computes."""
    return tuple(use.core.cpus[0] for use in core_uses(host, neighbours) if use.free and use.core.id not in own)


def _shared(host: Host, claim: Claim, cpus: Sequence[int], free: tuple[int, ...]) -> Finding:
    message = (
        f"{format_count(len(cpus), 'compute thread shares its core', 'compute threads share their cores')} (CPUs "
        f"{format_cpu_list(cpus)}) with {title(claim)}, so both wait for each other's turns"
    )
    if free:
        remedy = f"CPUs {format_cpu_list(free)} are free: name those, or leave the choice to homenode."
    else:
        remedy = "Give every server of this host --threads so that they fit side by side, or end one of them."
    return Finding("warning", SHARED, message, remedy)
