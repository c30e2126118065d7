"""`homenode doctor`: one page of what is in the way of speed, and what to type against it."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.many_values import ManyValuesCommand
from homenode.cli.output.report import json_errors, print_json
from homenode.cli.placement.flag_demand import demand_from_flags, plan_for
from homenode.cli.placement.plan_flags import PlanFlags, with_plan_flags
from homenode.errors import PlacementError, UserError

if TYPE_CHECKING:
    from homenode.cli.placement.native_levels import NativeLevels
    from homenode.host.doctor.live_facts import LiveFacts
    from homenode.host.topology.finding import Finding
    from homenode.host.topology.host import Host


@click.command(cls=ManyValuesCommand)
@click.option(
    "--pid",
    type=click.IntRange(1),
    help="Look at this process: its threads, mask, limits and variables instead of one's own.",
)
@with_plan_flags
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor(pid: int | None, as_json: bool, **values: Any) -> None:
    """Look over this machine, what is allowed here and the plan that the flags make, and say what to do better.

    Lists the instruction set levels of the native core, and who has been given which CPUs, besides.

    Exit code 0: nothing worse than warnings; 1: something keeps the plan from working.
    """
    from homenode.cli.placement.native_levels import native_levels
    from homenode.host.doctor.claims import claim_to_dict
    from homenode.host.doctor.doctor import doctor as findings_of
    from homenode.host.topology.describe import fingerprint
    from homenode.host.topology.finding import worst

    flags = PlanFlags.taken_from(values)
    with json_errors(as_json):
        live = _live(flags, pid)
        host, demand = demand_from_flags(flags, before_start=True)
        if pid is not None:
            host = _as_seen_by(pid, host)
        try:
            plan = plan_for(flags, host, demand)
        except PlacementError as refusal:
            found = findings_of(host, refusal, live)
        else:
            found = findings_of(host, plan, live)
        levels = native_levels() if flags.source is None else None
        if levels is not None:
            found = [*levels.findings(), *found]
        if as_json:
            core = levels.to_dict() if levels is not None else None
            claims = [claim_to_dict(claim) for claim in live.claims] if live is not None else []
            told = [finding.to_dict() for finding in found]
            print_json({"host": fingerprint(host), "findings": told, "claims": claims, "native_core": core})
        else:
            _show(found)
            _show_levels(levels)
        sys.exit(1 if worst(found) == "error" else 0)


def _live(flags: PlanFlags, pid: int | None) -> LiveFacts | None:
    from homenode.host.bind.base.threads import identify
    from homenode.host.doctor.live_facts import read_live_facts

    if flags.source is not None:
        if pid is not None:
            raise UserError(
                "--from names another host, and a process is of this one; give one of --from and --pid", param="--pid"
            )
        return None
    if pid is not None:
        identify(pid)
    return read_live_facts(pid)


def _as_seen_by(pid: int, host: Host) -> Host:
    from homenode.host.doctor.live_facts import ProcessSource
    from homenode.host.topology.allowance import Allowance

    source = ProcessSource(pid)
    return replace(host, allowance=Allowance.of_process(source), variables=dict(source.env))


def _show(found: list[Finding]) -> None:
    from rich.text import Text

    from homenode.cli.output.fitted_text import FittedLine
    from homenode.cli.output.report import print_fitted
    from homenode.cli.placement.draw_plan import COLOURS

    for finding in found:
        severity = (f"{finding.severity:8}", COLOURS[finding.severity])
        print_fitted(FittedLine(Text.assemble(severity, (f"{finding.code}: ", "bold"), finding.message), further=8))
        if finding.remedy:
            print_fitted(FittedLine(Text.assemble(" " * 8, ("do: ", "dim"), finding.remedy)))


def _show_levels(levels: NativeLevels | None) -> None:
    from rich.text import Text

    from homenode.cli.output.fitted_text import FittedLine
    from homenode.cli.output.report import print_fitted

    if levels is not None:
        print_fitted(Text("\nInstruction set levels of the native core:", "bold"))
        for line in levels.lines():
            print_fitted(FittedLine("  " + line))
