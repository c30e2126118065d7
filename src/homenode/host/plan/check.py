"""Findings that a person should know of any plan, of any strategy. Pure.

A finding is an error where the plan cannot be carried out as it is (or breaks a promise of its strategy), a warning
where it costs speed for certain, an info where it may. What a documented strategy brings about by its own rules is
never more than a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from homenode.cpuset import format_cpu_list
from homenode.host.plan.plan import Plan, WorkerBinding
from homenode.host.plan.priority_cores import priority_findings
from homenode.host.plan.resources.device_nodes import gap, local_nodes
from homenode.host.plan.strategy import Strategy
from homenode.host.topology.accelerators.cells import noted
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Host
from homenode.units import format_count

# Two pools under numa-bind share their node by the meaning of the flag; `fair` promises that no two ever meet.
_OVERLAP_SEVERITY: dict[str, str] = {Strategy.FAIR: "error", Strategy.NUMA_BIND: "info"}
_UNEVEN = 0.75  # pools count as uneven when the smallest has less than this part of the largest
_UNTOLD = 255  # the distance where the firmware says nothing
# Beginnings of the codes of what a tool failed to tell.
_OF_VENDORS_TOOLS = ("tool_", "npu_", "topo_row_", "nvidia_smi_")


def check(host: Host, plan: Plan) -> tuple[Finding, ...]:
    """All findings of all checks, those of a broken plan first."""
    return tuple(finding for one in _CHECKS for finding in one(host, plan))


def tool_findings(host: Host, plan: Plan) -> tuple[Finding, ...]:
    """Return what vendors' tools failed to tell, for a plan that rests on it: devices may be missing, or be
    misplaced.
    """
    if plan.strategy == Strategy.CPU_THREADS:
        return ()
    errors = (noted(error) for error in host.accelerators.errors)
    return tuple(
        finding for finding in (*errors, *host.accelerators.notes) if finding.code.startswith(_OF_VENDORS_TOOLS)
    )


def places_devices(plan: Plan) -> bool:
    """Return whether the plan's devices are accelerators; they are numbers of CPU workers otherwise."""
    return plan.devices_total > 0 and plan.strategy != Strategy.CPU_THREADS


def chips_by_device(host: Host, plan: Plan) -> dict[int, Accelerator]:
    """The accelerators of this host that the plan's devices are."""
    kind = host.accelerators.kind
    if kind is None or not places_devices(plan):
        return {}
    return {chip.id: chip for chip in host.accelerators.of_kind(kind)}


def _outside_allowance(host: Host, plan: Plan) -> Iterable[Finding]:
    allowed = set(host.allowance.cpus)
    wanted = {cpu for worker in _bound(plan) for cpus in (worker.cpus, *worker.roles.values()) for cpu in cpus}
    wanted.update(cpu for place in plan.processes for cpu in place.cpus)
    outside = (wanted | _pooled(plan)) - allowed
    if outside:
        message = f"CPUs {format_cpu_list(outside)} are planned for but not allowed to this process, or offline"
        yield Finding(
            "error",
            "outside_allowance",
            message,
            "Plan again on this host, or widen the cpuset or the mask of this process.",
        )


def _mask_by_accident(host: Host, plan: Plan) -> Iterable[Finding]:
    allowance = host.allowance
    if allowance.mask_origin == "openmp" and allowance.beyond_accident is not None:
        message = (
            f"an OpenMP runtime has pinned this process to CPUs {format_cpu_list(allowance.cpus)}; nothing else "
            "could be planned for"
        )
        remedy = (
            "Unset OMP_PROC_BIND and OMP_PLACES where this is started; "
            "`homenode plan` and `homenode run` also take --ignore-openmp-mask."
        )
        yield Finding("warning", "mask_by_accident", message, remedy)


def _memory_not_allowed(host: Host, plan: Plan) -> Iterable[Finding]:
    permitted = set(host.allowance.mems) or set(host.node_by_id)
    bindings = [worker.memory_nodes for worker in _bound(plan)] + [place.memory_nodes for place in plan.processes]
    wanted = {node for nodes in bindings for node in nodes}
    refused = wanted - (permitted & set(host.node_by_id))
    if refused:
        message = (
            f"memory is planned for nodes {format_cpu_list(refused)}; this process may take it from "
            f"{format_cpu_list(permitted) or 'none'} only"
        )
        yield Finding("error", "memory_node_not_allowed", message, "Widen cpuset.mems, or leave memory unbound.")


def _pools_overlap(host: Host, plan: Plan) -> Iterable[Finding]:
    users: dict[int, list[str]] = {}
    for device, cpus in plan.pools.items():
        for cpu in cpus:
            users.setdefault(cpu, []).append(str(device))
    if plan.strategy == Strategy.FAIR:
        for place in plan.processes:
            for cpu in place.cpus:
                users.setdefault(cpu, []).append(place.name)
    shared: dict[tuple[str, ...], list[int]] = {}
    for cpu, names in users.items():
        if len(names) > 1:
            shared.setdefault(tuple(names), []).append(cpu)
    if shared:
        message = "the same CPUs are in several pools: " + _listed(
            f"devices {', '.join(names)} share {format_cpu_list(cpus)}" for names, cpus in shared.items()
        )
        severity = _OVERLAP_SEVERITY.get(plan.strategy, "warning")
        yield Finding(severity, "pools_overlap", message, _or_fair(host, plan, "gives every device CPUs of its own"))


def _siblings_split(host: Host, plan: Plan) -> Iterable[Finding]:
    users: dict[int, set[int]] = {}
    for device, cpus in plan.pools.items():
        for cpu in cpus:
            if (known := host.cpu_by_id.get(cpu)) is not None and len(host.cores[known.core]) > 1:
                users.setdefault(known.core, set()).add(device)
    split: dict[tuple[int, ...], list[int]] = {}
    for core, devices in users.items():
        if len(devices) > 1 and _threads_differ(plan, host.cores[core], devices):
            split.setdefault(tuple(sorted(devices)), []).extend(host.cores[core])
    if split:
        parts = _listed(
            f"CPUs {format_cpu_list(cpus)} between devices {format_cpu_list(devices)}"
            for devices, cpus in split.items()
        )
        message = f"SMT siblings are in different pools and slow each other down: {parts}"
        yield Finding(
            "warning", "smt_siblings_split", message, _or_fair(host, plan, "keeps the siblings of a core together")
        )


def _threads_differ(plan: Plan, core: tuple[int, ...], devices: Iterable[int]) -> bool:
    """Return whether the core is cut between pools, rather than whole in each of them (which is an overlap)."""
    return len({frozenset(plan.pools[device]).intersection(core) for device in devices}) > 1


def _not_local(host: Host, plan: Plan) -> Iterable[Finding]:
    chips = chips_by_device(host, plan)
    for device, cpus in plan.pools.items():
        near = local_nodes(host, chips[device]) if device in chips else ()
        far = [cpu for cpu in cpus if cpu in host.cpu_by_id and host.cpu_by_id[cpu].node not in near]
        if not near or not far:
            continue
        where = f"its own node{'s' if len(near) > 1 else ''} {format_cpu_list(near)}"
        if len(far) == len(cpus):
            message = (
                f"none of the {format_count(len(cpus), 'CPU')} of device {device} ({format_cpu_list(cpus)}) is on "
                f"{where}"
            )
        else:
            own = len(cpus) - len(far)
            message = (
                f"{own} of the {format_count(len(cpus), 'CPU')} of device {device} {'is' if own == 1 else 'are'} on "
                f"{where}"
            )
        yield Finding(
            "warning", "pool_not_local", f"{message}; {_cost(host, near, far)}", _allow_more(host, near, plan)
        )


def _cost(host: Host, near: Sequence[int], far: Sequence[int]) -> str:
    """Return what CPUs away from home cost their device, by the distances that the firmware gives."""
    gaps: dict[int, list[int]] = {}
    for cpu in far:
        node = host.cpu_by_id[cpu].node
        gaps.setdefault(_UNTOLD if node is None else gap(host, near, node), []).append(cpu)
    parts = " and ".join(
        f"{format_cpu_list(cpus)} {_reach(distance)}" for distance, cpus in sorted(gaps.items(), key=lambda one: one[0])
    )
    return f"CPUs {parts}"


def _reach(distance: int) -> str:
    if distance >= _UNTOLD:
        return "reach the device and its memory over a way of unknown length"
    return f"reach the device and its memory at distance {distance}, {distance / 10:.1f} times as far as from home"


def _allow_more(host: Host, near: tuple[int, ...], plan: Plan) -> str:
    missing = {cpu.id for cpu in host.cpus if cpu.node in near}.difference(host.allowance.cpus)
    if missing:
        return f"Allow CPUs of {format_cpu_list(missing)} (cpuset, taskset), or use devices near the allowed ones."
    if plan.strategy != Strategy.FAIR:
        return "--strategy fair keeps to the device's own node where that has CPUs for it."
    return "That node has no more CPUs to give: a device of a larger node, or fewer devices there, would stay at home."


def _memory_remote(host: Host, plan: Plan) -> Iterable[Finding]:
    chips = chips_by_device(host, plan)
    for worker in _bound(plan):
        near = local_nodes(host, chips[worker.device]) if worker.device in chips else ()
        near = near or _nodes_of(host, worker.cpus)
        if worker.memory_node is None or not near or worker.memory_node in near:
            continue
        distance = min(host.distance(node, worker.memory_node) for node in near)
        whose = f"{'device' if places_devices(plan) else 'CPU worker'} {worker.device}"
        message = (
            f"memory of {whose} comes from node {worker.memory_node}, at distance {distance} from node "
            f"{format_cpu_list(near)}"
        )
        yield Finding("warning", "memory_remote", message, _nearer_memory(host, near, plan))


def _nearer_memory(host: Host, local_nodes: Iterable[int], plan: Plan) -> str:
    if all(host.node_by_id[node].memory == 0 for node in local_nodes if node in host.node_by_id):
        return "That node has no memory of its own; populate its memory channels, or live with it."
    if host.allowance.mems and not set(local_nodes) & set(host.allowance.mems):
        return f"Allow memory of node {format_cpu_list(local_nodes)} (cpuset.mems)."
    if not chips_by_device(host, plan):
        return (
            f"Let the worker take memory of node {format_cpu_list(local_nodes)}, or compute near the memory it takes."
        )
    return (
        "--strategy fair takes memory from the device's own node."
        if plan.strategy != Strategy.FAIR
        else "See cpuset.mems and the node's memory."
    )


def _or_fair(host: Host, plan: Plan, what: str) -> str:
    """Return what to do about pools that are in each other's way. Workers of our engines have lists and no strategy to
    choose.
    """
    if not chips_by_device(host, plan):
        return "Give each worker whole cores of its own."
    return f"--strategy fair {what}."


def _quota(host: Host, plan: Plan) -> Iterable[Finding]:
    quota = host.allowance.cpu_quota
    cpus = {cpu for worker in _bound(plan) for cpu in worker.cpus}
    if quota is not None and quota < len(cpus):
        message = (
            f"the control group may use {format_count(quota, 'CPU')} worth of time, the workers planned have "
            f"{format_count(len(cpus), 'CPU')}: busy threads will be throttled"
        )
        yield Finding(
            "warning",
            "quota_below_pool",
            message,
            f"Raise cpu.max to {format_count(len(cpus), 'CPU')} or more, or start at most "
            f"{format_count(max(1, int(quota)), 'thread')}.",
        )


def _isolated(host: Host, plan: Plan) -> Iterable[Finding]:
    used = set(host.isolated).intersection(cpu for worker in _bound(plan) for cpu in worker.cpus)
    if used:
        message = (
            f"CPUs {format_cpu_list(used)} are isolated (isolcpus): the scheduler does not spread threads over "
            "them, those of a process pile up on one"
        )
        yield Finding(
            "warning", "isolated_cpus", message, "Take them out of isolcpus, or out of this process's cpuset."
        )


def _uneven(host: Host, plan: Plan) -> Iterable[Finding]:
    sizes = {device: len(cpus) for device, cpus in plan.pools.items() if cpus}
    if not sizes or min(sizes.values()) >= _UNEVEN * max(sizes.values()):
        return
    least, most = min(sizes, key=lambda device: sizes[device]), max(sizes, key=lambda device: sizes[device])
    message = (
        f"device {least} has {format_count(sizes[least], 'CPU')}, device {most} has {sizes[most]}: in tensor "
        "parallelism the slowest rank decides"
    )
    yield Finding(
        "info", "pools_uneven", message, "Allow more CPUs near the devices with few, or fewer near the others."
    )


def _balancing(host: Host, plan: Plan) -> Iterable[Finding]:
    if host.numa_balancing and len(host.nodes) > 1 and plan.workers:
        message = (
            "automatic NUMA balancing is on: it samples accesses by page faults and may move memory that no policy "
            "holds"
        )
        yield Finding(
            "info", "numa_balancing_on", message, "Turn it off while serving: sysctl kernel.numa_balancing=0."
        )


def _bound(plan: Plan) -> list[WorkerBinding]:
    return [worker for worker in plan.workers if worker.bound]


def _pooled(plan: Plan) -> set[int]:
    unbound = {worker.device for worker in plan.workers if not worker.bound}
    return {cpu for device, cpus in plan.pools.items() if device not in unbound for cpu in cpus}


def _nodes_of(host: Host, cpus: Iterable[int]) -> tuple[int, ...]:
    found = {host.cpu_by_id[cpu].node for cpu in cpus if cpu in host.cpu_by_id}
    return tuple(sorted(node for node in found if node is not None))


def _listed(parts: Iterable[str], limit: int = 8) -> str:
    """At most `limit` of the parts, then how many more there are."""
    every = list(parts)
    return "; ".join(every[:limit]) + (f"; and {len(every) - limit} more" if len(every) > limit else "")


_CHECKS: tuple[Callable[[Host, Plan], Iterable[Finding]], ...] = (
    _outside_allowance,
    _mask_by_accident,
    _memory_not_allowed,
    _pools_overlap,
    _siblings_split,
    _not_local,
    _memory_remote,
    _quota,
    _isolated,
    _uneven,
    _balancing,
    priority_findings,
)
