"""`homenode bind`: a process that runs already, its threads by role and the memory it has."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.many_values import ManyValuesCommand
from homenode.cli.output.report import json_errors, print_json
from homenode.cli.placement.binding_plan import BindingPlan, plan_binding, print_lines, warn, with_target_flags
from homenode.cli.placement.given_settings import refuse_beside
from homenode.cli.placement.plan_flags import PlanFlags
from homenode.cli.placement.run import dry
from homenode.errors import HomenodeError, HostError, UserError

if TYPE_CHECKING:
    from homenode.host.bind.base.report import Report
    from homenode.host.bind.base.state import State
    from homenode.host.bind.changes import Change

# Flags that say where a process is to be bound; the others say how, or describe what is planned for.
_PLACES = (
    "cpus",
    "memory_nodes",
    "strategy",
    "numa_bind",
    "numa_bind_nodes",
    "numa_bind_cpus",
    "cpu_threads_bind",
    "visible_devices",
    "local_rank",
)


@click.command(cls=ManyValuesCommand)
@click.option("--pid", type=click.IntRange(1), required=True, help="The process.")
@with_target_flags
@click.option("--children", is_flag=True, help="The processes it has started as well, to the same CPUs.")
@click.option(
    "--memory/--no-memory", default=True, help="Move the private memory it has to the planned nodes (on by default)."
)
@click.option("--irqs/--no-irqs", default=True, help="Route its device's interrupts (on by default).")
@click.option("--strict", is_flag=True, help="Put everything back when a step cannot be done entirely.")
@click.option("--watch", "watch_s", type=click.FloatRange(0), is_flag=False, flag_value=0.0, metavar="[SECONDS]",
help="Stay, and bind threads that are born later; 0 or nothing: until it ends.")  # fmt: skip
@click.option("--undo", is_flag=True, help="Put back what was before the first binding.")
@click.option("--yes", is_flag=True, help="Bind by the plan although no flag says where to.")
@click.option("--dry-run", is_flag=True, help="Say what would be bound to what, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def bind(
    ctx: click.Context,
    /,
    pid: int,
    cpus: str | None,
    children: bool,
    memory: bool,
    irqs: bool,
    strict: bool,
    watch_s: float | None,
    undo: bool,
    yes: bool,
    dry_run: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Bind process PID by a plan, or to --cpus and --memory-nodes: all its threads, and the memory it has already.

    Where neither a place nor a strategy is given, the plan and what it would change are shown, and --yes is asked for.
    What was before is remembered, so that --undo can put it back. Exit code 1 when something of the plan does not hold.
    """
    from homenode.host.bind.base.state import open_state
    from homenode.host.bind.base.threads import descendants, identify, refuse_first_process

    flags = PlanFlags.taken_from(values)
    with json_errors(as_json):
        if undo:
            refuse_beside(ctx, "--undo", "which puts back all that was before the first binding", ("pid", "as_json"))
            _finish(_undo(pid, open_state()), as_json)
        if dry_run and watch_s is not None:
            raise UserError("--watch stays and binds, and --dry-run changes nothing; give one of them", param="--watch")
        identify(pid)
        refuse_first_process(pid)
        changes = not dry_run and (yes or _place_said(ctx))
        state = _state_if_possible(strict) if changes else None
        # A binding asked for by name is not left out quietly.
        found = plan_binding(flags, cpus, strict=True, pid=pid, claims=changes, strict_claims=strict)
        print_lines(found.ignored if as_json else (*found.ignored, *found.lines))
        if dry_run or found.target is None:
            others = tuple(descendants(pid)) if children else None
            listed = [] if found.target is None else _changes(pid, found, children, memory, irqs)
            shown = [{"pid": of, **change.to_dict()} for of, change in listed]
            print_json({**dry(found, memory=memory, irqs=irqs, children=others), "changes": shown})
            return
        if not changes:
            if not as_json:
                _show_plan(pid, found, memory)
                _show_changes(pid, _changes(pid, found, children, memory, irqs))
            raise UserError(
                f"process {pid} is left as it is, as nothing says where to bind it; give --yes to bind it by this "
                "plan, "
                "or say where: --cpus, --memory-nodes or --strategy",
                param="--yes",
            )
        report = _apply_or_release(pid, found, memory, irqs, strict, state)
        if report.ok and found.plan is not None and found.plan.kernel_threads:
            from homenode.host.bind.kernel_threads import bind_kernel_threads

            report += bind_kernel_threads(pid, found.plan.kernel_threads, state)
        for child in descendants(pid) if children else ():
            report += _apply_to_child(child, found, memory, strict, state)
        if watch_s is not None and report.ok:
            _watch(pid, found, watch_s)
        _finish(report, as_json)


def _place_said(ctx: click.Context) -> bool:
    """Return whether a flag says where to bind, rather than only how."""
    return any(ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE for name in _PLACES)


def _show_plan(pid: int, found: BindingPlan, memory: bool) -> None:
    from homenode.cpuset import format_cpu_list
    from homenode.host.bind.changes import name_and_owner

    target = found.target
    assert target is not None
    nodes = f", memory nodes {format_cpu_list(target.memory_nodes)}" if target.memory_nodes and memory else ""
    by = f" (strategy {found.plan.strategy})" if found.plan else ""
    click.echo(f"plan for process {name_and_owner(pid)}: CPUs {format_cpu_list(target.cpus)}{nodes}{by}")


def _changes(pid: int, found: BindingPlan, children: bool, memory: bool, irqs: bool) -> list[tuple[int, Change]]:
    """Return what binding would change, each with the process that it is about."""
    from homenode.host.bind.base.threads import descendants
    from homenode.host.bind.changes import changes_of_interrupts, changes_of_process

    assert found.target is not None
    listed = [(pid, change) for change in changes_of_process(pid, found.target, memory=memory)]
    for child in descendants(pid) if children else ():
        with suppress(UserError):  # it has ended
            listed += [(child, change) for change in changes_of_process(child, found.target, memory=memory)]
    return listed + [(pid, change) for change in (changes_of_interrupts(found.target, found.host) if irqs else ())]


def _show_changes(pid: int, changes: list[tuple[int, Change]]) -> None:
    from homenode.host.bind.changes import name_and_owner

    for of, change in changes:
        owner = "" if of == pid else f"process {name_and_owner(of)}: "
        click.echo(f"  would change: {owner}{change}")
    if not changes:
        click.echo("  would change nothing: it is so already")


def _state_if_possible(strict: bool) -> State | None:
    """The state folder. Where there is none: HostError with `strict`, else None, and it is told what will not be
    possible."""
    from homenode.host.bind.base.state import open_state

    try:
        return open_state()
    except HostError as error:
        if strict:
            raise
        warn(f"warning: undoing will not be possible, as nothing can be remembered: {error.message}")
        return None


def _apply_or_release(
    pid: int, found: BindingPlan, memory: bool, irqs: bool, strict: bool, state: State | None
) -> Report:
    """Nobody keeps CPUs for a process that could not be bound to them."""
    try:
        report = _apply(pid, found, memory, irqs, strict, state)
    except HomenodeError:
        _release(pid, state)
        raise
    if not report.ok:
        _release(pid, state)
    return report


def _release(pid: int, state: State | None) -> None:
    """Give up what the process claims. A claim that stays written down ends with the process, so failing to is only
    told."""
    from homenode.host.bind.claims import release

    try:
        if state is not None:
            release(state, pid)
    except HostError as error:
        warn(f"warning: what process {pid} claims is not given up: {error.message}")


def _apply(pid: int, found: BindingPlan, memory: bool, irqs: bool, strict: bool, state: State | None) -> Report:
    from homenode.host.bind.apply import apply

    assert found.target is not None
    report = apply(pid, found.target, memory=memory, strict=strict, state=state)
    if irqs and found.target.irqs and report.ok:
        from homenode.host.bind.irq import route_target

        report += route_target(pid, found.target, found.host, state)
    return report


def _apply_to_child(pid: int, found: BindingPlan, memory: bool, strict: bool, state: State | None) -> Report:
    """One that has ended since it was listed is no trouble."""
    from homenode.host.bind.base.report import Report
    from homenode.host.bind.base.threads import identify

    try:
        identify(pid)
        return _apply(pid, found, memory, False, strict, state)
    except UserError:
        if Path(f"/proc/{pid}").exists():
            raise
        return Report()


def _undo(pid: int, state: State) -> Report:
    from functools import partial

    from homenode.host.bind.irq import restore
    from homenode.host.bind.undo import undo

    report = undo(pid, state, restore_irqs=partial(restore, state=state))
    _release(pid, state)
    return report


def _watch(pid: int, found: BindingPlan, seconds: float) -> None:
    from homenode.host.bind.watch import watch

    assert found.target is not None
    until = time.monotonic() + seconds if seconds else None
    with suppress(UserError):  # it ended before the first look
        watch(pid, found.target, until=until, on_report=lambda report: show(report, err=True), repair=True)


def _finish(report: Report, as_json: bool) -> None:
    if as_json:
        print_json(report.to_dict())
    else:
        show(report)
    sys.exit(0 if report.ok else 1)


def show(report: Report, err: bool = False) -> None:
    """A report as lines."""
    for step in report.steps:
        click.echo(f"{step.outcome:9} {step.what}" + (f": {step.detail}" if step.detail else ""), err=err)
    for finding in report.findings:
        click.echo(f"{finding.severity} {finding.code}: {finding.text}", err=err)
