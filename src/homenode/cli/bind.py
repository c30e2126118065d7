"""`homenode bind`: a process that runs already, its threads by role and the memory it has."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.aim import Aim, aim, told, warn, with_target_flags
from homenode.cli.given_settings import refuse_beside
from homenode.cli.placement_options import ManyValuesCommand, PlanFlags
from homenode.cli.report import json_errors, print_json
from homenode.cli.run import dry
from homenode.errors import HomenodeError, HostError, UserError

if TYPE_CHECKING:
    from homenode.host.binding.report import Report
    from homenode.host.binding.state import State


@click.command(cls=ManyValuesCommand)
@click.option("--pid", type=click.IntRange(1), required=True, help="The process.")
@with_target_flags
@click.option("--children", is_flag=True, help="The processes it has started as well, to the same CPUs.")
@click.option(
    "--memory/--no-memory", default=True, help="Move the private memory it has to the planned nodes (on by default)."
)
@click.option("--irqs/--no-irqs", default=True, help="Route its device's interrupts (on by default).")
@click.option("--strict", is_flag=True, help="Put everything back when a step cannot be done entirely.")
@click.option("--watch", "watch_s", type=click.FloatRange(0), is_flag=False, flag_value=0.0, metavar="[SECONDS]", help="Stay, and bind threads that are born later; 0 or nothing: until it ends.")  # fmt: skip
@click.option("--undo", is_flag=True, help="Put back what was before the first binding.")
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
    dry_run: bool,
    as_json: bool,
    **values: Any,
) -> None:
    """Bind process PID by a plan, or to --cpus and --memory-nodes: all its threads, and the memory it has already.

    What was before is remembered, so that --undo can put it back. Exit code 1 when something of the plan does not hold.
    """
    from homenode.host.binding.state import open_state
    from homenode.host.binding.threads import descendants, identify

    flags = PlanFlags.taken_from(values)
    with json_errors(as_json):
        if undo:
            refuse_beside(ctx, "--undo", "which puts back all that was before the first binding", ("pid", "as_json"))
            _finish(_undo(pid, open_state()), as_json)
        if dry_run and watch_s is not None:
            raise UserError("--watch stays and binds, and --dry-run changes nothing; give one of them", param="--watch")
        identify(pid)
        state = None if dry_run else _state_if_possible(strict)
        # A binding asked for by name is not left out quietly.
        found = aim(flags, cpus, strict=True, pid=pid, claims=not dry_run, strict_claims=strict)
        told(found.ignored if as_json else (*found.ignored, *found.lines))
        if dry_run or found.target is None:
            others = tuple(descendants(pid)) if children else None
            print_json(dry(found, memory=memory, irqs=irqs, children=others))
            return
        report = _apply_or_release(pid, found, memory, irqs, strict, state)
        if report.ok and found.plan is not None and found.plan.kernel_threads:
            from homenode.host.binding.kernel_threads import bind_kernel_threads

            report += bind_kernel_threads(pid, found.plan.kernel_threads, state)
        for child in descendants(pid) if children else ():
            report += _apply_to_child(child, found, memory, strict, state)
        if watch_s is not None and report.ok:
            _watch(pid, found, watch_s)
        _finish(report, as_json)


def _state_if_possible(strict: bool) -> State | None:
    """The state folder. Where there is none: HostError with `strict`, else None, and it is told what will not be
    possible."""
    from homenode.host.binding.state import open_state

    try:
        return open_state()
    except HostError as error:
        if strict:
            raise
        warn(f"warning: undoing will not be possible, as nothing can be remembered: {error.message}")
        return None


def _apply_or_release(pid: int, found: Aim, memory: bool, irqs: bool, strict: bool, state: State | None) -> Report:
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
    from homenode.host.binding.claims import release

    try:
        if state is not None:
            release(state, pid)
    except HostError as error:
        warn(f"warning: what process {pid} claims is not given up: {error.message}")


def _apply(pid: int, found: Aim, memory: bool, irqs: bool, strict: bool, state: State | None) -> Report:
    from homenode.host.binding.apply import apply

    assert found.target is not None
    report = apply(pid, found.target, memory=memory, strict=strict, state=state)
    if irqs and found.target.irqs and report.ok:
        from homenode.host.binding.irq import route_target

        report += route_target(pid, found.target, found.host, state)
    return report


def _apply_to_child(pid: int, found: Aim, memory: bool, strict: bool, state: State | None) -> Report:
    """One that has ended since it was listed is no trouble."""
    from homenode.host.binding.report import Report
    from homenode.host.binding.threads import identify

    try:
        identify(pid)
        return _apply(pid, found, memory, False, strict, state)
    except UserError:
        if Path(f"/proc/{pid}").exists():
            raise
        return Report()


def _undo(pid: int, state: State) -> Report:
    from functools import partial

    from homenode.host.binding.irq import restore
    from homenode.host.binding.undo import undo

    report = undo(pid, state, restore_irqs=partial(restore, state=state))
    _release(pid, state)
    return report


def _watch(pid: int, found: Aim, seconds: float) -> None:
    from homenode.host.binding.watch import watch

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
