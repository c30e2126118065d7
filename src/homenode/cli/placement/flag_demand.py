"""The way from the flags of `PlanFlags` and the host's variables to what is to be placed, and to the plan.

Importing this module must stay cheap: a whole `homenode plan` takes less than 0.3 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from homenode.cli.placement.given_settings import check_settings, cpu_binding_off, settings_without_effect
from homenode.cli.placement.plan_flags import PlanFlags, open_source
from homenode.host.plan.strategy import Strategy

if TYPE_CHECKING:
    from homenode.host.plan.demand import Claim, Demand
    from homenode.host.plan.plan import Plan
    from homenode.host.topology.accelerators.visible import Visible
    from homenode.host.topology.host import Host


def demand_from_flags(
    flags: PlanFlags, *, before_start: bool = False, claims: tuple[Claim, ...] = ()
) -> tuple[Host, Demand]:
    """The host the flags name, and what is to be placed on it.

    Raises PlacementError and UserError for any value that cannot be read or contradicts another, also where the
    strategy does not need it.
    """
    from homenode.host.discovery.read import read_host
    from homenode.host.topology.accelerators.visible import see

    source = open_source(flags.source)
    host = read_host(source)
    if flags.ignore_openmp_mask:
        host = replace(host, allowance=host.allowance.widened())
    seen = see(host.accelerators, source.env, flags.visible_devices)
    host = replace(host, accelerators=seen.accelerators)
    demand = _demand(flags, seen, source.env, before_start, claims)
    check_settings(flags, host, demand, flags.chosen_strategy)
    return host, demand


def plan_for(flags: PlanFlags, host: Host, demand: Demand) -> Plan:
    """The plan of the chosen strategy, stamped with the host it was made for, with a finding for each setting that
    has no effect on it."""
    from homenode.host.plan.select import make_plan
    from homenode.host.topology.describe import fingerprint

    strategy = flags.chosen_strategy
    off = cpu_binding_off(flags, host, strategy)
    findings = [*([off] if off else []), *settings_without_effect(flags, host, demand, strategy)]
    return replace(make_plan(strategy, host, demand).with_findings(findings), host=fingerprint(host))


def _demand(
    flags: PlanFlags, seen: Visible, env: Mapping[str, str], before_start: bool, claims: tuple[Claim, ...]
) -> Demand:
    from homenode.host.plan.demand import Demand, Parallelism
    from homenode.host.plan.variables import (
        memory_nodes,
        memory_nodes_origin,
        reserve_cpus,
        threads_bind,
        threads_bind_origin,
        vllm_version,
    )

    parallelism = Parallelism(
        devices=flags.devices or 0,
        data_parallel_size=flags.data_parallel_size,
        tensor_parallel_size=flags.tensor_parallel_size,
        pipeline_parallel_size=flags.pipeline_parallel_size,
        api_server_count=flags.api_server_count,
        data_parallel_rank=flags.data_parallel_rank,
        external_launcher=flags.external_launcher,
    )
    return Demand(
        device_type=flags.device_type,
        visible=seen.devices,
        local_rank=flags.local_rank,
        before_start=before_start,
        reserve_cpus=reserve_cpus(flags.reserve_cpus, env, cpu_workers=flags.chosen_strategy == Strategy.CPU_THREADS),
        parallelism=parallelism,
        numa_bind_nodes=flags.numa_bind_nodes or None,
        numa_bind_cpus=flags.numa_bind_cpus or None,
        threads_bind=threads_bind(flags.cpu_threads_bind, env) or "auto",
        memory_nodes=memory_nodes(flags.memory_nodes, env),
        kv_transfer=flags.kv_transfer,
        vllm_version=vllm_version(flags.vllm_version, env),
        workers=flags.workers,
        claims=claims,
        findings=seen.findings,
        threads_bind_origin=threads_bind_origin(flags.cpu_threads_bind, env),
        memory_nodes_origin=memory_nodes_origin(flags.memory_nodes, env),
    )
