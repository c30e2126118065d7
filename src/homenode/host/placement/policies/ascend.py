"""`ascend`: the documented selection by device type. A3 is cut by `global-slice`, every other type planned by `topo-affinity`."""

from __future__ import annotations

from collections.abc import Sequence

from homenode.host.placement.demand import Demand
from homenode.host.placement.plan import Plan
from homenode.host.placement.policies import global_slice, topo_affinity
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host

# Beginnings of the names in use for a family, in lower case and without blanks, `ascend` and `atlas`; the longest that fits decides.
_FAMILIES = {
    "a2": "A2", "910b": "A2",
    "a3": "A3", "910_93": "A3", "910c": "A3",
    "310p": "310P", "300i": "310P", "300v": "310P", "300": "310P",
    "a5": "950", "950": "950",
}  # fmt: skip


def plan(host: Host, demand: Demand) -> Plan:
    """Raises what the chosen strategy raises."""
    given = demand.device_type if demand.device_type is not None else host.accelerators.device_type
    known = family(given or "")
    chosen = global_slice.plan(host, demand) if known == "A3" else topo_affinity.plan(host, demand)
    return chosen if known else chosen.with_findings([_unknown(given)])


def family(device_type: str) -> str | None:
    """`A2`, `A3`, `310P` or `950` for any spelling in use (`a3`, `Ascend 910B3`, `910_93`, `Atlas 300I Duo`); None for any other."""
    name = device_type.lower().replace(" ", "").removeprefix("ascend").removeprefix("atlas")
    fitting = [known for known in _FAMILIES if name.startswith(known)]
    return _FAMILIES[max(fitting, key=len)] if fitting else None


def log_lines(plan: Plan, mode: str, rank: int, visible: Sequence[int]) -> list[str]:
    """The documented lines on applying the plan of one rank. `mode` is the strategy selected, before any fallback: `topo_affinity`."""
    mode = mode.replace("-", "_")
    lines = [
        f"[cpu_bind_mode] mode={mode} rank={rank} visible_npus={list(visible)}",
        "The CPU allocation plan is as follows:",
    ]
    worker = plan.worker_of(rank)
    if worker is not None:
        roles = " ".join(f"{role}={list(worker.roles[role])}" for role in ("main", "acl", "release"))
        lines.append(f"NPU{worker.device}: {roles}")
    return lines


def _unknown(given: str | None) -> Finding:
    if given is None:
        message = "the Ascend device type is not known; it is planned as every type but A3 is"
        return Finding("info", "device_type_unknown", message, "Name it with --device-type A2, A3, 310P or 950.")
    message = f"the device type {given!r} is not known; it is planned as every type but A3 is"
    return Finding("warning", "device_type_unknown", message, "Write --device-type A2, A3, 310P or 950.")
