"""A plan in plain lines: where each part of every pool lies, where memory comes from, who has which role, and why.
Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from homenode.cpuset import format_cpu_list
from homenode.host.plan.check import chips_by_device, places_devices
from homenode.host.plan.plan import ROLES, Plan, ProcessBinding, WorkerBinding
from homenode.host.plan.resources.device_nodes import local_nodes
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Host
from homenode.units import format_bytes, format_count


def explain(host: Host, plan: Plan) -> list[str]:
    """Lines of text without colour or frames: a heading, a block for each worker and each other process, then the
    findings."""
    chips = chips_by_device(host, plan)
    lines = [_heading(host, plan)]
    for worker in plan.workers:
        lines += ["", *_worker_lines(host, worker, chips.get(worker.device), drives=places_devices(plan))]
    for place in plan.processes:
        lines += ["", *_process_lines(host, place)]
    for name, cpus in plan.kernel_threads.items():
        lines += ["", f"kernel threads {name}: {_counted(cpus)}", *_part_lines(host, cpus, ())]
    if plan.findings:
        lines += ["", *(_finding_line(finding) for finding in plan.findings)]
    return lines


def _heading(host: Host, plan: Plan) -> str:
    devices = format_count(plan.devices_total, "device")
    allowed = host.allowance.cpus
    return (
        f"strategy {plan.strategy}: {devices}, {len(plan.workers)} to place; {format_count(len(allowed), 'CPU')} "
        f"allowed: {format_cpu_list(allowed) or 'none'}"
    )


def _worker_lines(host: Host, worker: WorkerBinding, chip: Accelerator | None, *, drives: bool) -> list[str]:
    name = f"device {worker.device}{_described(chip) if chip else ''}" if drives else f"CPU worker {worker.device}"
    if not worker.bound:
        return [f"rank {worker.local_rank}, {name}: not bound", f"  why: {worker.why}"]
    own = local_nodes(host, chip) if chip else () if drives else worker.memory_nodes[:1]
    lines = [f"rank {worker.local_rank}, {name}: {_counted(worker.cpus)}"]
    lines += _part_lines(host, worker.cpus, own)
    lines += [f"  {role}: {format_cpu_list(worker.roles[role])}" for role in ROLES if worker.roles.get(role)]
    lines += _memory_lines(host, worker.memory_nodes, own)
    return [*lines, f"  why: {worker.why}"]


def _process_lines(host: Host, process: ProcessBinding) -> list[str]:
    if not process.cpus:
        return [f"{process.name}: not bound", f"  why: {process.why}"]
    return [
        f"{process.name}: {_counted(process.cpus)}",
        *_part_lines(host, process.cpus, ()),
        *_memory_lines(host, process.memory_nodes, ()),
        f"  why: {process.why}",
    ]


def _part_lines(host: Host, cpus: Sequence[int], own: Sequence[int]) -> list[str]:
    """One line for each node that the pool touches, nearest first."""
    allowed = set(host.allowance.cpus)
    parts: dict[int, list[int]] = {}
    for number in cpus:
        cpu = host.cpu_by_id.get(number)
        if cpu is not None and cpu.node is not None:
            parts.setdefault(cpu.node, []).append(number)
    lines = []
    for node in sorted(parts, key=lambda node: (_distance(host, own, node), node)):
        total = sum(1 for cpu in host.node_by_id[node].cpus if cpu in allowed)
        where = f"node {node}{_nearness(host, own, node)}"
        lines.append(
            f"  {where}: {len(parts[node])} of its {format_count(total, 'allowed CPU')}: "
            f"{format_cpu_list(parts[node])}{_caches(host, parts[node])}"
        )
    return lines


def _counted(cpus: Sequence[int]) -> str:
    return f"{format_count(len(cpus), 'CPU')} {format_cpu_list(cpus)}"


def _caches(host: Host, cpus: Sequence[int]) -> str:
    """Return how the part lies on the last-level caches; empty where the kernel does not tell."""
    part = Counter(host.cpu_by_id[number].l3 for number in cpus)
    del part[None]
    if not part:
        return ""
    sizes = Counter(cpu.l3 for cpu in host.cpus)
    whole = sum(1 for cache, count in part.items() if count == sizes[cache])
    return f"; L3 caches: {whole} whole, {len(part) - whole} in part"


def _memory_lines(host: Host, nodes: Sequence[int], own: Sequence[int]) -> list[str]:
    if not nodes:
        return ["  memory: not bound"]
    parts = []
    for node in nodes:
        known = host.node_by_id.get(node)
        size = f", {format_bytes(known.memory)}" if known and known.memory is not None else ""
        parts.append(f"node {node}{_nearness(host, own, node)}{size}")
    return [f"  memory: {'; then '.join(parts)}"]


def _nearness(host: Host, own: Sequence[int], node: int) -> str:
    if not own:
        return ""
    return " (its own)" if node in own else f" (distance {_distance(host, own, node)})"


def _distance(host: Host, own: Sequence[int], node: int) -> int:
    return min((host.distance(mine, node) for mine in own), default=0)


def _described(chip: Accelerator) -> str:
    words = [word for word in (chip.name, chip.address) if word]
    return f" ({', '.join(words)})" if words else ""


def _finding_line(finding: Finding) -> str:
    return f"{finding.severity} {finding.code}: {finding.text}"
