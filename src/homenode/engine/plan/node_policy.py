"""The meaning of `--numa` for an engine of several workers, which divide the nodes: each worker keeps to its own, and
where it has several of them its weights are spread over these as those of an engine with one worker are. Pure.

| | a worker on one node | a worker on several nodes |
|---|---|---|
| shard, mirror, interleave | all its memory there | over its own nodes |
| local | all its memory there | computes on one of them only |
| auto | all its memory there | shard, or what was settled for the whole model |
| replicate | | an engine for each node, which `homenode serve` makes before workers are divided |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import EngineBinding
from homenode.engine.config import PlacementConfig
from homenode.engine.plan.placement import UNPINNED, core_of, cut, place_engine
from homenode.errors import PlacementError, UserError
from homenode.host.plan.numa.demand import Decision
from homenode.host.plan.numa.node_teams import node_teams, parse_node_list
from homenode.host.plan.numa.policy import Chosen, Teams
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.numa_policy import MATRIX_POLICIES, NumaPolicy
from homenode.units import format_count


def divided_host(host: Host, placement: PlacementConfig) -> Host:
    """The host as far as its nodes are to compute: those of --numa-nodes. Raises what `node_teams` raises."""
    if placement.numa_nodes is None:
        return host
    teams = node_teams(host, parse_node_list(placement.numa_nodes), None, placement.threads_per_core, 0)
    nodes = {team.node for team in teams}
    cpus = tuple(cpu for cpu in host.allowance.cpus if host.cpu_by_id[cpu].node in nodes)
    return replace(host, allowance=cut(host, host.allowance, cpus))


def own_host(host: Host, binding: EngineBinding) -> Host:
    """The host as far as it is a worker's: the cores of its compute threads."""
    cores = {core_of(host, cpu) for cpu in binding.team}
    cpus = tuple(cpu for cpu in host.allowance.cpus if core_of(host, cpu) in cores)
    own = cut(host, host.allowance, cpus)
    quota = own.cpu_quota
    return replace(host, allowance=replace(own, cpu_quota=None if quota is None else min(quota, float(len(cores)))))


def over_own_nodes(
    host: Host, assignment: EngineAssignment, bindings: Sequence[EngineBinding]
) -> tuple[tuple[EngineBinding, ...], tuple[Finding, ...]]:
    """The places of CPU workers, which divide the cores already, under --numa; and what is to be told of them.
    UserError for a policy that workers cannot have, PlacementError where --numa-strict asks for more nodes than any
    worker has.
    """
    placement = assignment.config.placement
    several = (
        len(
            {
                cpu.node
                for binding in bindings
                for number in binding.team
                if (cpu := host.cpu_by_id.get(number)) is not None
            }
        )
        > 1
    )
    if placement.numa == "replicate" and several:
        raise UserError(
            "--numa replicate is an engine for each node, and these are the "
            f"{format_count(len(bindings), 'worker')} of one engine; `homenode serve` makes such engines, each "
            "with workers of its own. Elsewhere give auto, or leave it out",
            param="numa",
        )
    made = tuple(
        binding if UNPINNED in binding.team else _over_own_nodes(host, assignment, binding) for binding in bindings
    )
    spread = any(binding.numa in MATRIX_POLICIES for binding in made)
    if placement.numa in (*MATRIX_POLICIES, "replicate") and not spread:
        return made, (_nothing_to_spread(placement, len(bindings)),)
    return made, ()


def _over_own_nodes(host: Host, assignment: EngineAssignment, binding: EngineBinding) -> EngineBinding:
    config = assignment.config
    policy = "local" if config.placement.numa == "replicate" else config.placement.numa
    own = replace(config.placement, numa=policy, numa_nodes=None, reserve_cpus=0, numa_strict=False)
    found = place_engine(
        own, config.compute.threads, own_host(host, binding), lambda teams: _decided(assignment, teams)
    )
    findings = tuple(finding for finding in found.findings if finding.code != "numa_single_node")
    return replace(
        found,
        others=binding.others,
        spare=binding.spare,
        findings=(*binding.findings, *findings),
        strict=config.placement.numa_strict,
    )


def _decided(assignment: EngineAssignment, teams: Teams) -> Chosen:
    settled = assignment.numa_decision
    if settled is not None and settled.policy in MATRIX_POLICIES:
        return Decision(settled.policy, settled.why)
    return Decision(
        NumaPolicy.SHARD,
        f"one copy over the {format_count(len(teams), 'node')} of this worker, each row with its thread",
    )


def _nothing_to_spread(placement: PlacementConfig, workers: int) -> Finding:
    message = (
        f"--numa {placement.numa} is the same as local: each of the {format_count(workers, 'worker')} computes on "
        "one NUMA node"
    )
    remedy = "Nothing to do where that is meant; else have fewer workers than nodes."
    if placement.numa_strict:
        raise PlacementError(
            "several_nodes_needed",
            f"--numa {placement.numa} needs several nodes, and --numa-strict refuses to do without",
            seen=f"each of the {format_count(workers, 'worker')} computes on one NUMA node",
            wanted="a worker that computes on two nodes at least",
            remedy="Have fewer workers than nodes, or leave out --numa-strict.",
            param="--numa-strict",
        )
    return Finding("warning", "numa_single_node", message, remedy)
