"""`ascend`: the documented selection by device type. A3 is cut by `global-slice`, every other type planned by
`topo-affinity`."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan, WorkerBinding
from homenode.host.plan.policies import global_slice, topo_affinity
from homenode.host.plan.policies.ascend_plan import device_type_of
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host


def plan(host: Host, demand: Demand) -> Plan:
    """Raises what the chosen strategy raises."""
    given, known = device_type_of(host, demand)
    chosen = global_slice.plan(host, demand) if known == "A3" else topo_affinity.plan(host, demand)
    return chosen if known else chosen.with_findings([_unknown(given)])


def log_lines(plan: Plan, mode: str, rank: int, visible: Sequence[int]) -> list[str]:
    """The documented lines on applying the plan of one rank. `mode` is the strategy selected, before any fallback:
    `topo_affinity`."""
    mode = mode.replace("-", "_")
    lines = [
        f"[cpu_bind_mode] mode={mode} rank={rank} visible_npus={list(visible)}",
        "The CPU allocation plan is as follows:",
    ]
    worker = plan.worker_of(rank)
    if worker is not None and worker.bound:
        lines.append(_pool_line(worker))
    return lines


def _pool_line(worker: WorkerBinding) -> str:
    if "acl" not in worker.roles:
        return f"Ascend 950 NPU{worker.device}: worker={list(worker.cpus)}"
    roles = " ".join(f"{role}={list(worker.roles[role])}" for role in ("main", "acl", "release"))
    return f"NPU{worker.device}: {roles}"


def _unknown(given: str | None) -> Finding:
    if given is None:
        message = "the Ascend device type is not known; it is planned as every type but A3 is"
        return Finding("info", "device_type_unknown", message, "Name it with --device-type A2, A3, 310P or 950.")
    message = f"the device type {given!r} is not known; it is planned as every type but A3 is"
    return Finding("warning", "device_type_unknown", message, "Write --device-type A2, A3, 310P or 950.")
