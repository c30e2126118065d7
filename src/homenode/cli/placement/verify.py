"""`homenode verify`: whether a process is where it should be, as the kernel tells it."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from homenode.cli.flags.many_values import ManyValuesCommand
from homenode.cli.output.report import json_errors, print_json
from homenode.cli.placement.bind import show
from homenode.cli.placement.binding_plan import plan_binding, print_lines, with_target_flags
from homenode.cli.placement.plan_flags import PlanFlags
from homenode.errors import HostError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from homenode.host.bind.base.report import Report
    from homenode.host.bind.base.target import Target
    from homenode.host.plan.plan import Plan
    from homenode.host.topology.host import Host


@click.command(cls=ManyValuesCommand)
@click.option("--pid", type=click.IntRange(1), required=True, help="The process.")
@with_target_flags
@click.option(
    "--started-bound",
    is_flag=True,
    help="It was started by `homenode run`, so its memory policy must be the plan's as well.",
)
@click.option("--watch", "watch_s", type=click.FloatRange(0), is_flag=False, flag_value=0.0, metavar="[SECONDS]",
help="Go on looking, and tell of drift as it comes; 0 or nothing: until it ends.")  # fmt: skip
@click.option("--repair", is_flag=True, help="With --watch: put back what has drifted.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verify(
    pid: int, cpus: str | None, started_bound: bool, watch_s: float | None, repair: bool, as_json: bool, **values: Any
) -> None:
    """Compare process PID with a plan, or with --cpus and --memory-nodes: masks of all threads, memory policy, where
    pages lie, interrupts.

    Of a server of homenode, or of one of its engines, nothing more need be said: each engine is compared with the plan
    it was started by, every page of its weights and of its KV memory and the CPU of each of its compute threads.

    Exit code 0: all as planned; 1: something is off the plan, and the findings say what; 2: no plan is known, and none
    was given.
    """
    flags = PlanFlags.taken_from(values)
    with json_errors(as_json):
        if repair and watch_s is None:
            raise UserError("--repair needs --watch; to bind it once more use `homenode bind`", param="--repair")
        report = _engines(pid) if _only_given("pid", "as_json") else None
        unknown = report is None and _only_given("pid", "as_json", "watch_s", "repair") and not _bound_by_plan(pid)
        if unknown:
            report = _no_plan(pid)
        elif report is None:
            report = _verify(pid, flags, cpus, started_bound, watch_s, repair)
        if as_json:
            print_json({"pid": pid, **report.to_dict()})
        else:
            show(report)
        sys.exit(2 if unknown else 0 if report.ok else 1)


def _only_given(*names: str) -> bool:
    """Return whether no parameters but these were given."""
    context = click.get_current_context()
    said = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    return all(name in names or context.get_parameter_source(name) in said for name in context.params)


def _bound_by_plan(pid: int) -> bool:
    """Return whether the state folder knows of a plan for the process: `run` or `bind` has bound it, or one that
    started it.
    """
    from homenode.host.bind.base.state import open_state
    from homenode.host.bind.base.threads import ancestors
    from homenode.host.bind.claims import read_claims
    from homenode.host.bind.undo import recorded

    try:
        state = open_state()
    except HostError:
        return False
    family = {pid, *ancestors(pid)}
    return any(claim.pid in family for claim in read_claims(state)) or any(
        process.pid == pid for process in recorded(state)
    )


def _no_plan(pid: int) -> Report:
    """Return a report that there is nothing to compare the process with. Raises UserError for a process that is not
    there.
    """
    from homenode.host.bind.base.report import Report
    from homenode.host.bind.base.state import VARIABLE, open_state
    from homenode.host.bind.base.threads import identify
    from homenode.host.topology.finding import Finding

    identify(pid)
    try:
        where = f"in {open_state().folder}"
    except HostError:
        where = "as there is no state folder"
    message = f"no plan was found for process {pid} {where}, so there is nothing to compare it with"
    remedy = (
        f"Give {VARIABLE} as the process has it, and be its user; or say what to compare it with, such as --cpus LIST "
        "or --strategy fair"
    )
    return Report((), (Finding("warning", "no_plan_found", message, remedy),))


def _engines(pid: int) -> Report | None:
    """Return how the engines of a server, or this one, agree with what they have planned; None where the process is
    none of ours.
    """
    from homenode.host.bind.base.report import Report
    from homenode.host.bind.base.state import open_state
    from homenode.host.bind.engine_plan import recorded_plans, verify_plan

    try:
        state = open_state()
    except HostError:
        return None  # and no engine has found a folder either
    plans = recorded_plans(state, pid)
    return sum((verify_plan(*each) for each in plans.items()), Report()) if plans else None


def _verify(
    pid: int, flags: PlanFlags, cpus: str | None, started_bound: bool, watch_s: float | None, repair: bool
) -> Report:
    from homenode.host.bind.verify import verify as read_back
    from homenode.host.bind.watch import watch

    found = plan_binding(flags, cpus, strict=True, pid=pid, claims=False, beside_claims=False)
    print_lines(found.ignored)
    target = found.target
    if target is None:
        raise UserError("there is nothing to compare with: the plan leaves this process unbound", param="--strategy")
    readers = [*_irq_readers(target, found.host), *_kernel_thread_readers(found.plan)]
    report = read_back(pid, target, policy_expected=started_bound, readers=readers)
    if watch_s is None:
        return report
    show(report, err=True)
    until = time.monotonic() + watch_s if watch_s else None
    try:
        watch(pid, target, until=until, on_report=lambda seen: show(seen, err=True), bind_late=repair, repair=repair)
        return read_back(pid, target, policy_expected=started_bound, readers=readers)
    except UserError:  # it has ended: what was seen of it stands
        return report


def _irq_readers(target: Target, host: Host) -> list[Callable[[], Report]]:
    if not target.irqs:
        return []
    from homenode.host.bind.irq import verify_target

    return [lambda: verify_target(target, host)]


def _kernel_thread_readers(plan: Plan | None) -> list[Callable[[], Report]]:
    if plan is None or not plan.kernel_threads:
        return []
    from homenode.host.bind.kernel_threads import verify_kernel_threads

    return [lambda: verify_kernel_threads(plan.kernel_threads)]
