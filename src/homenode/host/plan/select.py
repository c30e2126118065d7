"""The strategies by name. Pure: a policy's module is imported when it is asked for, so that a plan costs no more than
it needs."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from homenode.errors import PlacementError
from homenode.host.plan.check import check, tool_findings
from homenode.host.plan.claimed import overlaps
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan
from homenode.host.plan.strategy import Strategy
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host

STRATEGIES: dict[str, str] = {
    Strategy.FAIR.value: "disjoint pools of whole cores, each device its share of its own node first (default)",
    Strategy.ASCEND.value: "the documented Ascend selection: global-slice on A3, topo-affinity on every other type",
    Strategy.GLOBAL_SLICE.value: "the allowed CPUs cut evenly by logical NPU number",
    Strategy.TOPO_AFFINITY.value: "CPUs that the vendor's tool reports as near, extended to the next node",
    Strategy.NUMA_BIND.value: "vLLM's --numa-bind: one node or CPU list for each visible device",
    Strategy.CPU_THREADS.value: "one CPU worker for each memory node, or the lists given (VLLM_CPU_OMP_THREADS_BIND)",
}


def make_plan(strategy: str, host: Host, demand: Demand) -> Plan:
    """The plan of one strategy with everything a person should know about it as findings. Raises PlacementError when it
    must refuse."""
    made = _policy(strategy)(host, demand)
    known = {(finding.code, finding.message) for finding in made.findings}
    said = (*demand.findings, *check(host, made), *_left_aside(strategy, host, demand, made))
    made = made.with_findings([finding for finding in said if (finding.code, finding.message) not in known])
    codes = {finding.code for finding in made.findings}
    return made.with_findings([finding for finding in tool_findings(host, made) if finding.code not in codes])


def _left_aside(strategy: str, host: Host, demand: Demand, made: Plan) -> list[Finding]:
    """Return what the rules of other programs do not look at: that somebody else computes there. Ranks that drive
    devices are given CPUs in common by some of these rules; that is no news to them.
    """
    if strategy == Strategy.FAIR:
        return []
    claims = [claim for claim in demand.claims if strategy == Strategy.CPU_THREADS or not claim.devices]
    cpus = [cpu for worker in made.workers if worker.bound for cpu in worker.cpus]
    return overlaps(host, claims, cpus, f"the rule of {strategy} does not look at claims, so both compute there")


def _policy(strategy: str) -> Callable[[Host, Demand], Plan]:
    if strategy not in STRATEGIES:
        raise PlacementError(
            "no_such_strategy",
            f"there is no strategy {strategy!r}",
            seen=strategy,
            wanted=" | ".join(STRATEGIES),
            remedy="Name one of them with --strategy.",
            param="--strategy",
        )
    module = importlib.import_module(f"homenode.host.plan.policies.{strategy.replace('-', '_')}")
    policy: Callable[[Host, Demand], Plan] = module.plan
    return policy
