"""The way from the settings of a service to the assignment of each of its engines: reads the machine once, before any
of them takes memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding, Replica
from homenode.engine.config import EngineConfig
from homenode.engine.cpu_claims import CpuClaim, claims_of_others, open_claims
from homenode.engine.memory.available import available_memory
from homenode.engine.plan.free_cores import binds_threads, keep_clear, neighbour_findings
from homenode.engine.plan.machine import busy_where_it_counts
from homenode.engine.plan.placement import UNPINNED, reserved_cores
from homenode.engine.plan.quota_sets import takes_sets, with_sets
from homenode.engine.plan.replica_bindings import memory_shares, replica_places, team_places
from homenode.engine.plan.unbound import unbound
from homenode.host.bind.base.optional_calls import affinity_refusal
from homenode.host.discovery.read import read_host
from homenode.host.plan.demand import Claim
from homenode.host.plan.neighbours import HostNeighbours
from homenode.host.plan.numa.demand import Decision
from homenode.host.plan.numa.policy import Chosen, NumaPlan, Teams, numa_plan
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.host.topology.source import LiveSource
from homenode.model.checkpoint.index import open_checkpoint
from homenode.numa_policy import NumaPolicy
from homenode.transfer.setup.checks import wrong_count


@dataclass(frozen=True)
class ClaimedEngines:
    """The assignments of a service's engines, and how they were decided: by this host beside these claims of others.
    `claim`: of all their CPUs; of none where an engine that is alone claims its own. `host`: None there."""

    assignments: tuple[EngineAssignment, ...]
    claim: CpuClaim = field(default_factory=lambda: CpuClaim(""))
    host: Host | None = None
    others: tuple[Claim, ...] = ()


def claimed_engines(config: EngineConfig) -> ClaimedEngines:
    """Assign as `replica_assignments`; the CPUs of several engines are claimed for as long as this process lives, so
    that one that is started again finds its own. An engine that is alone claims its own.
    """
    if not config.may_be_several:
        return ClaimedEngines((EngineAssignment(config),))
    host = read_host(LiveSource(), accelerators=False)
    busy, claim = busy_where_it_counts(config, host), CpuClaim(f"engines of {config.model_name}")
    with open_claims(claim) as claims:
        made = replica_assignments(config, host, HostNeighbours(claims.others, busy))
        teams = [each.replica.binding.team for each in made if each.replica]
        if teams and binds_threads(config):
            claims.take(claim, {cpu for team in teams for cpu in team if cpu != UNPINNED})
    told = _told(made, [Finding("warning", "claims_not_kept", line) for line in claims.lines])
    return ClaimedEngines(told, claim, host, claims.others)


def replica_assignments(
    config: EngineConfig, host: Host | None = None, neighbours: HostNeighbours | None = None
) -> tuple[EngineAssignment, ...]:
    """The assignment of each engine that --data-parallel-size or --numa replicate asks for; that of an engine that is
    alone when that is one. `host`, `neighbours`: this machine and who else uses it, None: as they are now. Raises as
    `replica_places` and `numa_plan`.
    """
    count = config.parallel.data_parallel_size
    if not config.may_be_several:
        return (EngineAssignment(config),)
    host = host or read_host(LiveSource(), accelerators=False)
    if neighbours is None:
        neighbours = HostNeighbours(claims_of_others(), busy_where_it_counts(config, host))
    clear, beside = (
        keep_clear(host, config, count * config.parallel.workers, neighbours)
        if binds_threads(config)
        else (host, config)
    )
    if count > 1:
        return _beside(config, host, replica_places(clear, beside, count), neighbours)
    plan = _plan(beside, clear)
    bindings = node_places(beside, clear, plan)
    if len(bindings) > 1:
        return _beside(config, host, bindings, neighbours)
    _require_ports(config, 1)
    return (EngineAssignment(config, numa_decision=_numa_decision(config, plan)),)


def _beside(
    config: EngineConfig, host: Host, bindings: Sequence[EngineBinding], neighbours: HostNeighbours
) -> tuple[EngineAssignment, ...]:
    """The assignments in these places, with what is to be said of the neighbours. `host`: all that the service may
    use."""
    if takes_sets(host, config):
        bindings = with_sets(host, bindings, neighbours)
    refusal = affinity_refusal()
    bindings = [unbound(binding, refusal) for binding in bindings]
    team = tuple(cpu for binding in bindings for cpu in binding.team if cpu != UNPINNED)
    findings = neighbour_findings(host, team, neighbours) if binds_threads(config) else ()
    return _told(assignments_in(config, host, bindings), findings)


def _told(assignments: tuple[EngineAssignment, ...], findings: Sequence[Finding]) -> tuple[EngineAssignment, ...]:
    """Return the assignments with further findings; what all engines tell is said once."""
    return tuple(
        replace(each, replica=replace(each.replica, binding=each.replica.binding.told(findings)))
        if each.replica
        else each
        for each in assignments
    )


def _plan(config: EngineConfig, host: Host) -> NumaPlan:
    reserve = reserved_cores(config.placement, host)
    return numa_plan(
        host, config.placement.demand(config.compute.threads, reserve), lambda teams: _choice(config, host)(teams)
    )


def _numa_decision(config: EngineConfig, plan: NumaPlan) -> Decision | None:
    """Return what --numa auto has come to: its engine need not decide again, perhaps differently as other memory is
    free then.
    """
    if config.placement.numa != "auto":
        return None
    home = (plan.teams[0].node,) if plan.policy == "local" else ()
    return Decision(plan.policy, plan.why, home)


def node_places(config: EngineConfig, host: Host, plan: NumaPlan | None = None) -> tuple[EngineBinding, ...]:
    """The places of the engines of --numa replicate, or of --numa auto where that comes to the same; empty otherwise.
    plan: what was settled already, None to settle it.
    """
    placement = config.placement
    plan = plan or _plan(config, host)
    if plan.policy != "replicate" or len(plan.teams) < 2:
        return ()
    return tuple(
        replace(
            binding,
            numa=NumaPolicy.REPLICATE,
            numa_why=plan.why,
            thread_memory=(team.memory_node,) * len(team.cpus) if host.nodes else (),
            findings=(*plan.findings, *binding.findings),
            strict=placement.numa_strict,
        )
        for team, binding in zip(plan.teams, team_places(host, plan.teams), strict=True)
    )


def _choice(config: EngineConfig, host: Host) -> Callable[[Teams], Chosen]:
    """Return what settles --numa auto; the model's headers are read only where there is something to settle."""
    from homenode.engine.plan.inline import numa_choice  # opens the backend, which the front does not need otherwise

    return numa_choice(EngineAssignment(config), open_checkpoint(Path(str(config.model.path))), host)


def assignments_in(config: EngineConfig, host: Host, bindings: Sequence[EngineBinding]) -> tuple[EngineAssignment, ...]:
    """An assignment for an engine in each of these places, with its share of the memory that is free now, and of the
    ports. UserError where there are not as many of these as engines have ranks.
    """
    _require_ports(config, len(bindings))
    ranks = config.parallel.tensor_parallel_size
    capacities = [available_memory(binding) for binding in bindings]
    shares = memory_shares([(room.size, room.nodes) for room in capacities], Allowance.of_process().memory_available)
    return tuple(
        EngineAssignment(
            replace(config, transfer=config.transfer.of_engine(number, ranks)),
            Replica(number, len(bindings), binding, host.allowance.cpus, share),
        )
        for number, (binding, share) in enumerate(zip(bindings, shares, strict=True))
    )


def _require_ports(config: EngineConfig, engines: int) -> None:
    if problem := next(wrong_count(config.transfer, config.parallel.tensor_parallel_size, engines), None):
        raise problem
