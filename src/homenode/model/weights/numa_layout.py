"""A model on a host with a NUMA policy: teams, the node of every row, and whether it fits. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from homenode.compute.ops import Backend, PackedBackend
from homenode.errors import InternalError, UserError
from homenode.host.plan.numa.demand import NumaDemand
from homenode.host.plan.numa.policy import Chosen, NumaPlan, Teams, numa_plan
from homenode.host.plan.numa.weight_capacity import check_node_capacity, check_total_capacity
from homenode.host.topology.host import Host
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.node_placement import (
    GROUP_ROWS,
    GroupBytes,
    WeightNodes,
    plan_weight_nodes,
    stored_group_bytes,
)
from homenode.numa_policy import PLANNED_POLICIES


@dataclass(frozen=True)
class NumaLayout:
    """`plan`: the policy and the teams. `weights`: the NUMA node of every row."""

    plan: NumaPlan
    weights: WeightNodes


def numa_layout(
    layout: WeightLayout,
    host: Host,
    demand: NumaDemand,
    choose: Callable[[Teams], Chosen],
    group_bytes: GroupBytes = stored_group_bytes,
    owners: Mapping[str, int] = MappingProxyType({}),
    replica: int | None = None,
) -> NumaLayout:
    """Settle the policy (`choose` is asked for `auto`), and give every row its node.

    Weights alone are held against the memory there is: KV memory and buffers come on top. `owners`: as
    `plan_weight_nodes` takes them. `replica`: the one of several engines that is asked about: the others look after
    their own nodes, which may be in use by them already. Raises PlacementError weights_do_not_fit, saying on which
    node, how much was wanted and is free, and which policies would fit; and what `numa_plan` and `plan_weight_nodes`
    raise.
    """
    made = _laid_out(layout, host, demand, choose, group_bytes, owners)
    teams = made.plan.teams
    asked = (
        made.weights.on(teams[replica].memory_node) if replica is not None and replica < len(teams) else made.weights
    )
    if not _fits(asked, host):
        fitting = _fitting(layout, host, demand, group_bytes, owners)
        check_node_capacity(made.plan.policy, asked.too_full, fitting)
        check_total_capacity(made.plan.policy, asked.total, _available(host), fitting)
    return made


def packed_group_bytes(backend: Backend) -> GroupBytes:
    """The size of a group of rows as this backend packs it."""
    if not isinstance(backend, PackedBackend):
        return stored_group_bytes
    return lambda target, columns: backend.packed_bytes(target, GROUP_ROWS, columns)


def _laid_out(
    layout: WeightLayout,
    host: Host,
    demand: NumaDemand,
    choose: Callable[[Teams], Chosen],
    group_bytes: GroupBytes,
    owners: Mapping[str, int],
) -> NumaLayout:
    plan = numa_plan(host, demand, choose)
    weights = plan_weight_nodes(layout, plan.teams, plan.policy, demand.mirror_tensors, plan.why, group_bytes, owners)
    return NumaLayout(plan, weights)


def _fits(weights: WeightNodes, host: Host) -> bool:
    available = _available(host)
    return not weights.too_full and (available is None or weights.total <= available)


def _available(host: Host) -> int | None:
    """Return what this process may take of all nodes; recordings do not tell."""
    return host.allowance.memory_available or None


def _fitting(
    layout: WeightLayout, host: Host, demand: NumaDemand, group_bytes: GroupBytes, owners: Mapping[str, int]
) -> dict[str, int]:
    """The policies under which the weights would fit, with their bytes on all nodes."""
    found: dict[str, int] = {}
    for policy in PLANNED_POLICIES:
        asked = replace(demand, policy=policy, strict=False, mirror_tensors=())
        try:
            weights = _laid_out(layout, host, asked, _no_choice, group_bytes, owners).weights
        except UserError:
            continue  # such as more threads than one node has CPUs
        if weights.policy == policy and _fits(weights, host):
            found[policy] = weights.total
    return found


def _no_choice(teams: Teams) -> Chosen:
    raise InternalError("a policy was to be chosen where all were named")
