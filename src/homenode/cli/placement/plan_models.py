"""`homenode plan --models FILE`: where each of several models would be, with how much memory, and why; headers are
read, no weight is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.settings import SettingOption
from homenode.cli.output.report import print_json
from homenode.cli.placement.given_settings import refuse_beside
from homenode.errors import UserError

if TYPE_CHECKING:
    from homenode.cli.placement.plan_flags import PlanFlags
    from homenode.cli.several_models.models_plan import ModelsPlan
    from homenode.host.topology.host import Host

_READ = ("models", "models_memory", "source", "reserve_cpus", "ignore_openmp_mask", "as_json")


def with_model_flags(command: Any) -> Any:
    """Decorator: --models and what goes with it."""
    for add in reversed(
        [
            click.option(
                "--models",
                multiple=True,
                metavar="FILE|DIR",
                help="Plan where `homenode serve --models` with the same file or folder would have each model.",
            ),
            click.option(
                "--models-memory",
                envvar="HOMENODE_MODELS_MEMORY",
                cls=SettingOption,
                metavar="SIZE",
                help="As for `homenode serve`.",
            ),
        ]
    ):
        command = add(command)
    return command


def model_flags(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any] | None:
    """The values of these flags, taken out of `values`; None where no models are planned. UserError for flags that go
    with nothing else.
    """
    mine = {name: values.pop(name) for name in ("models", "models_memory")}
    if mine["models"]:
        refuse_beside(ctx, "--models", "which plans where several models are", _READ)
        return mine
    if ctx.get_parameter_source("models_memory") is click.core.ParameterSource.COMMANDLINE:
        raise UserError(
            "--models-memory is about several models: name them with --models FILE", param="--models-memory"
        )
    return None


def plan_models_of(flags: PlanFlags, asked: dict[str, Any], as_json: bool) -> int:
    """Print the places. The result is the exit code: 1 where a model has none. Raises what reading the host and the
    file and planning raise.
    """
    from homenode.cli.several_models.models_file import read_models, usual_values
    from homenode.cli.several_models.models_plan import measure_model, plan_models
    from homenode.units import parse_bytes

    host, reserve = _host(flags)
    entries = read_models(asked["models"], usual_values())
    budget = None if asked["models_memory"] is None else parse_bytes(asked["models_memory"])
    made = plan_models([measure_model(entry) for entry in entries], host, budget, reserve)
    if as_json:
        print_json(plan_json(made))
    else:
        _print(made)
    return 1 if made.problems else 0


def _host(flags: PlanFlags) -> tuple[Host, int | None]:
    """The host as a server would find it, and the cores that are to be kept."""
    from dataclasses import replace

    from homenode.cli.placement.plan_flags import open_source
    from homenode.cli.several_models.models_host import beside_neighbours
    from homenode.host.discovery.read import read_host
    from homenode.host.plan.variables import reserve_cpus

    source = open_source(flags.source)
    host = read_host(source, accelerators=False)
    if flags.ignore_openmp_mask:
        host = replace(host, allowance=host.allowance.widened())
    if flags.source is None:
        host = beside_neighbours(host)
    return host, reserve_cpus(flags.reserve_cpus, source.env, cpu_workers=True)


def plan_json(made: ModelsPlan) -> dict[str, Any]:
    """The plan as --json prints it."""
    from homenode.cli.several_models.models_plan import UNBOUNDED, crowding, lending

    problems = [{"name": name, "error": error.message} for name, error in sorted(made.problems.items())]
    return {
        "models_memory": made.budget if made.budget < UNBOUNDED else None,
        "models": [made.places[each.entry.name].to_json() | _settings(each.entry) for each in _placed(made)],
        "problems": problems,
        "findings": [*crowding(made), *lending(made)],
    }


def _placed(made: ModelsPlan) -> list[Any]:
    return [each for each in made.measured if each.entry.name in made.places]


def _settings(entry: Any) -> dict[str, Any]:
    return {"aliases": list(entry.aliases), "pin": entry.pin, "on_demand": entry.on_demand}


def _print(made: ModelsPlan) -> None:
    from homenode.cli.output.fitted_text import FittedLine, FittedTable
    from homenode.cli.output.report import print_fitted
    from homenode.cli.several_models.models_plan import UNBOUNDED, crowding, lending
    from homenode.cpuset import format_cpu_list
    from homenode.units import format_bytes

    table = FittedTable("model", "nodes", "CPUs", "memory", "loaded")
    for each in _placed(made):
        place, entry = made.places[each.entry.name], each.entry
        when = "on demand" if entry.on_demand else "at the start"
        row = (format_cpu_list(place.nodes), format_cpu_list(place.cpus), format_bytes(place.total))
        table.add_row(entry.name, *row, f"{when}, pinned" if entry.pin else when)
    most = "as much memory as there is" if made.budget >= UNBOUNDED else format_bytes(made.budget)
    print_fitted(FittedLine(f"models may take {most} together"))
    if made.places:
        print_fitted(table)
    for each in _placed(made):
        print_fitted(FittedLine(f"{each.entry.name}: {made.places[each.entry.name].reason}"))
    for name, error in sorted(made.problems.items()):
        print_fitted(FittedLine(f"{name} has no place: {error.message}"))
    for line in (*crowding(made), *lending(made)):
        print_fitted(FittedLine(line))
