"""The NUMA policy that an engine gets on this host, and its teams. Pure.

A host on which only one node can compute leaves nothing to choose: every policy is `local` there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError, UserError
from homenode.host.plan.numa.demand import Decision, NumaDemand
from homenode.host.plan.numa.node_teams import NodeTeam, node_teams, parse_node_list
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.numa_policy import NumaPolicy
from homenode.units import format_count

Teams = tuple[NodeTeam, ...]


class Chosen(Protocol):
    """The answer of a cost model, such as `weight_cost.Choice`."""

    @property
    def policy(self) -> NumaPolicy:
        """Any but auto."""

    @property
    def why(self) -> str:
        """Say why in a sentence, with figures."""

    @property
    def nodes(self) -> tuple[int, ...]:
        """The nodes that compute; of `local` the one. Empty: those there are, and for `local` the usual one."""


@dataclass(frozen=True, slots=True)
class NumaPlan:
    """`policy`: any but auto. `teams`: the nodes that compute, one of them under local."""

    asked: NumaPolicy
    policy: NumaPolicy
    why: str
    teams: Teams
    findings: tuple[Finding, ...] = ()

    @property
    def memory_nodes(self) -> tuple[int, ...]:
        """The nodes that hold weights, each once, in the order of the teams."""
        return tuple(dict.fromkeys(team.memory_node for team in self.teams))


def numa_plan(host: Host, demand: NumaDemand, choose: Callable[[Teams], Chosen]) -> NumaPlan:
    """Settle the policy and the teams. `choose`: asked for `auto` where several nodes can compute.

    Raises PlacementError several_nodes_needed (with `strict`, where there is one only) and what `node_teams` raises,
    UserError for patterns of tensors under a policy that has no use for them.
    """
    nodes = None if demand.nodes is None else parse_node_list(demand.nodes)
    _check_patterns(demand)
    teams = node_teams(host, nodes, demand.threads, demand.threads_per_core, demand.reserve)
    findings = _unused_siblings(host, demand, teams)
    if len(teams) == 1:
        return _single(host, demand, teams, findings)
    asked = Decision(demand.policy, f"asked for with --numa {demand.policy}")
    chosen: Chosen = choose(teams) if demand.policy == NumaPolicy.AUTO else asked
    if chosen.policy == NumaPolicy.LOCAL:
        home = (*chosen.nodes, teams[0].node if nodes else home_team(teams).node)[0]
        # A number of threads that was asked for is kept; that they fit on one node is checked there.
        wanted = demand.threads if demand.policy == NumaPolicy.LOCAL else _within(host, home, demand)
        teams = node_teams(host, (home,), wanted, demand.threads_per_core, demand.reserve)
    return NumaPlan(demand.policy, chosen.policy, chosen.why, teams, (*findings, *_unmirrored(demand, chosen.policy)))


def home_team(teams: Teams) -> NodeTeam:
    """The node of `local` where none is named: that with most threads, of those with the same number the one with most
    memory, then the first."""
    return max(teams, key=lambda team: (len(team.cpus), team.memory or 0, -teams.index(team)))


def _within(host: Host, node: int, demand: NumaDemand) -> int | None:
    """The threads that were asked for, or as many as the node has CPUs for: `auto` took the node, so the number is its
    to lower."""
    if demand.threads is None:
        return None
    allowed = set(host.allowance.cpus)
    return min(demand.threads, len(allowed.intersection(host.node_by_id[node].cpus)))


def _check_patterns(demand: NumaDemand) -> None:
    if demand.mirror_tensors and demand.policy not in (NumaPolicy.AUTO, NumaPolicy.SHARD):
        raise UserError(
            f"--numa-mirror-tensors chooses matrices that --numa shard mirrors; with --numa {demand.policy} there "
            "is nothing to choose; "
            "leave it out, or give --numa shard",
            param="numa_mirror_tensors",
        )


def _unmirrored(demand: NumaDemand, policy: NumaPolicy) -> tuple[Finding, ...]:
    """Return findings that patterns of tensors have nothing to do, under the policy that it came to."""
    if not demand.mirror_tensors or policy == NumaPolicy.SHARD:
        return ()
    patterns = " ".join(f"--numa-mirror-tensors {pattern}" for pattern in demand.mirror_tensors)
    message = f"{patterns} is ignored: it chooses what --numa shard mirrors, and the policy is {policy} here"
    return (Finding("warning", "numa_mirror_ignored", message, "Leave it out."),)


def _unused_siblings(host: Host, demand: NumaDemand, teams: Teams) -> tuple[Finding, ...]:
    cores = {host.cpu_by_id[cpu].core for team in teams for cpu in team.cpus}
    if demand.threads_per_core == 1 or any(len(host.cores[core]) > 1 for core in cores):
        return ()
    message = (
        f"--threads-per-core {demand.threads_per_core} changes nothing: the cores of this host have one thread each"
    )
    return (Finding("warning", "one_thread_per_core", message, "Leave it out."),)


def _single(host: Host, demand: NumaDemand, teams: Teams, findings: tuple[Finding, ...]) -> NumaPlan:
    """One node computes. Whoever asked for several is told; for `auto` and `local` nothing is amiss."""
    why = f"only NUMA node {teams[0].node} computes here, so that everything is local to it"
    only = _only(host, demand, teams[0])
    message = f"--numa {demand.policy} is the same as local: {only}"
    findings = (*findings, *_unmirrored(demand, NumaPolicy.LOCAL))
    if demand.policy in (NumaPolicy.AUTO, NumaPolicy.LOCAL):
        return NumaPlan(
            demand.policy, NumaPolicy.LOCAL, why, teams, (*findings, Finding("info", "numa_single_node", message))
        )
    if demand.strict:
        raise PlacementError(
            "several_nodes_needed",
            f"--numa {demand.policy} needs several nodes, and --numa-strict refuses to do without",
            seen=only,
            wanted="compute threads on at least two NUMA nodes",
            remedy="Allow CPUs of several nodes, or leave out --numa-strict.",
            param="--numa-strict",
        )
    remedy = "Nothing to do where that is meant; else allow CPUs of several nodes, or more --threads."
    return NumaPlan(
        demand.policy,
        NumaPolicy.LOCAL,
        why,
        teams,
        (*findings, Finding("warning", "numa_single_node", message, remedy)),
    )


def _only(host: Host, demand: NumaDemand, team: NodeTeam) -> str:
    """Return why there is one team only."""
    computing = {cpu.node for number in host.allowance.cpus if (cpu := host.cpu_by_id.get(number))}
    if len(computing) < 2:
        others = len([node for node in host.nodes if node.cpus]) > 1
        return (
            f"this process may use CPUs of node {team.node} only" if others else "this host has one NUMA node with CPUs"
        )
    if demand.nodes is not None and len(parse_node_list(demand.nodes)) == 1:
        return f"--numa-nodes {demand.nodes} names one node"
    where = f"node {team.node} only, of {format_cpu_list(node for node in computing if node is not None)}"
    if demand.threads is not None:
        return f"--threads {demand.threads} are on {where}"
    quota = host.allowance.cpu_quota
    if quota is not None and int(quota) < len(host.allowance.physical_cpus):
        return f"the CPU quota of {format_count(quota, 'CPU')} has compute threads on {where}"
    if demand.reserve is not None:
        return f"--reserve-cpus {demand.reserve} leaves compute threads on {where}"
    return f"compute threads are on {where}, as the other cores are kept for the rest of the server"
