"""`homenode plan`: who would run where, where weights would lie, and why; nothing is changed."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.many_values import ManyValuesCommand
from homenode.cli.output.report import json_errors, print_json
from homenode.cli.placement.claims_beside import claims_on
from homenode.cli.placement.flag_demand import demand_from_flags, plan_for
from homenode.cli.placement.plan_flags import PlanFlags, with_plan_flags
from homenode.cli.placement.plan_models import model_flags, plan_models_of, with_model_flags
from homenode.cli.placement.plan_stages import plan_stages, stage_flags, with_stage_flags
from homenode.cli.placement.plan_weights import plan_weights, weight_flags, with_weight_flags
from homenode.errors import UserError

if TYPE_CHECKING:
    from homenode.host.plan.demand import Demand
    from homenode.host.topology.host import Host


@click.command(cls=ManyValuesCommand)
@with_plan_flags
@click.option(
    "--requirements", is_flag=True, help="Say how many cores the deployment needs, and whether this host has them."
)
@click.option("--before-start", is_flag=True, help="Plan for the visible devices although nothing runs on them yet.")
@click.option("--explain", is_flag=True, help="Say for each worker where its CPUs and its memory lie, and why.")
@click.option(
    "--html",
    "html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the plan as a page with a picture of the machine, one file by itself.",
)
@with_weight_flags
@with_stage_flags
@with_model_flags
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    requirements: bool,
    before_start: bool,
    explain: bool,
    html: Path | None,
    as_json: bool,
    **values: Any,
) -> None:
    """Plan who runs where on this host, or on a recorded one; with --weights, where a model's weights lie; with
    --stages, who has which layers; with --models, where each of several models is.

    Exit code 0: a plan without trouble; 1: a plan with findings of severity error; 2: no plan, and the reason.
    """
    from homenode.host.topology.finding import worst

    with json_errors(as_json):
        models = model_flags(ctx, values)
        stages = stage_flags(ctx, values)
        weights = weight_flags(ctx, values, with_stages=stages is not None)
        flags = PlanFlags.taken_from(values)
        if models is not None:
            sys.exit(plan_models_of(flags, models, as_json))
        if stages is not None:
            sys.exit(plan_stages(flags, stages, as_json))
        if weights is not None:
            sys.exit(plan_weights(flags, weights, as_json, html))
        host, demand = demand_from_flags(flags, before_start=before_start)
        if requirements:
            if html is not None:
                raise UserError(
                    "--html is about a plan, and --requirements makes none; give one of them", param="--html"
                )
            if explain:
                raise UserError(
                    "--explain is about a plan, and --requirements makes none; give one of them", param="--explain"
                )
            sys.exit(_requirements(flags, host, demand, as_json))
        made = plan_for(flags, host, demand)
        cpus = [cpu for worker in made.workers if worker.bound for cpu in worker.cpus]
        made = made.with_findings(claims_on(flags, host, cpus))
        if html is not None:
            from homenode.cli.output.html_page import write_page
            from homenode.cli.placement.plan_page import plan_page

            write_page(html, plan_page(host, made))
        if as_json:
            print_json(made.to_dict())
        elif explain:
            from homenode.cli.output.fitted_text import FittedLine
            from homenode.cli.output.report import print_fitted
            from homenode.host.plan.explain import explain as explained

            for line in explained(host, made):
                print_fitted(FittedLine(line))
        else:
            from homenode.cli.output.report import print_fitted
            from homenode.cli.placement.draw_plan import draw_plan

            print_fitted(draw_plan(host, made))
        sys.exit(1 if worst(made.findings) == "error" else 0)


def _requirements(flags: PlanFlags, host: Host, demand: Demand, as_json: bool) -> int:
    from homenode.cli.placement.given_settings import settings_without_effect
    from homenode.host.plan.requirements import requirements
    from homenode.host.plan.settings_read import REQUIREMENTS

    needed = requirements(host, demand)
    ignored = settings_without_effect(flags, host, demand, REQUIREMENTS)
    needed = replace(needed, findings=(*needed.findings, *ignored))
    if as_json:
        print_json(needed.to_dict())
    else:
        from homenode.cli.output.report import print_fitted
        from homenode.cli.placement.draw_plan import draw_requirements

        print_fitted(draw_requirements(needed))
    return 0 if needed.met else 1
