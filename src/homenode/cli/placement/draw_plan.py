"""A plan and the core requirements as tables, findings below."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from homenode.cli.output.fitted_text import FittedLine, FittedTable
from homenode.cpuset import format_cpu_list
from homenode.host.plan.plan import ROLES, Plan
from homenode.host.plan.requirements import Requirements
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from homenode.units import format_count

COLOURS = {"info": "dim", "warning": "yellow", "error": "bold red"}


def draw_plan(host: Host, plan: Plan) -> RenderableType:
    """One row for each worker and process, then the findings."""
    roles = [role for role in ROLES if any(worker.roles.get(role) for worker in plan.workers)]
    title = (
        f"{plan.strategy} · {format_count(plan.devices_total, 'device')} · "
        f"{format_count(len(host.allowance.cpus), 'CPU')} allowed"
    )
    table = FittedTable("rank", "device", "CPUs", *roles, "memory", "why", title=title)
    for worker in plan.workers:
        cpus = format_cpu_list(worker.cpus) if worker.bound else "(not bound)"
        cells = [format_cpu_list(worker.roles.get(role, ())) for role in roles]
        table.add_row(str(worker.local_rank), str(worker.device), cpus, *cells, _nodes(worker.memory_nodes), worker.why)
    for place in plan.processes:
        empty = [""] * len(roles)
        table.add_row(
            "", place.name, format_cpu_list(place.cpus) or "(not bound)", *empty, _nodes(place.memory_nodes), place.why
        )
    for name, own in plan.kernel_threads.items():
        table.add_row("", name, format_cpu_list(own), *[""] * len(roles), "", "threads of the driver in the kernel")
    return Group(table, *draw_findings(plan.findings))


def draw_requirements(needed: Requirements) -> RenderableType:
    """Return what the deployment needs, part by part, against what there is."""
    table = FittedTable("part", "cores", title=needed.formula)
    for what, cores in needed.parts:
        table.add_row(what, str(cores))
    verdict = "enough" if needed.met else "too few"
    line = (
        f"{format_count(needed.physical_cores, 'physical core')} ({format_count(needed.vcpus, 'CPU')}) "
        f"{'is' if needed.physical_cores == 1 else 'are'} needed; this process may use {needed.have_cores} "
        f"({format_count(needed.have_vcpus, 'CPU')}): {verdict}"
    )
    return Group(
        table, FittedLine(Text(line, style="green" if needed.met else "bold red")), *draw_findings(needed.findings)
    )


def draw_findings(findings: Sequence[Finding]) -> list[FittedLine]:
    """One line each: severity, what, and the remedy."""
    return [
        FittedLine(Text.assemble((f"{finding.severity} {finding.code}: ", COLOURS[finding.severity]), finding.text))
        for finding in findings
    ]


def _nodes(nodes: Sequence[int]) -> str:
    return f"node {format_cpu_list(nodes)}" if nodes else ""
