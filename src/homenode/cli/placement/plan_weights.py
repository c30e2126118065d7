"""`homenode plan --weights MODEL`: on which nodes the weights would lie, and which rows of every matrix; headers are
read, no weight is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.settings import NUMA_SETTINGS, SettingOption, build, with_some_settings
from homenode.cli.flags.suggestions import SuggestingChoice
from homenode.cli.flags.token_counts import TokenCount
from homenode.cli.output.report import print_json
from homenode.cli.placement.binding_plan import warn
from homenode.cli.placement.claims_beside import claims_on
from homenode.errors import UserError
from homenode.host.plan.numa.settings import NumaSettings
from homenode.kv_types import KV_CHOICES

if TYPE_CHECKING:
    from homenode.cli.placement.plan_flags import PlanFlags
    from homenode.host.topology.host import Host
    from homenode.model.weights.numa_layout import NumaLayout

_OWN_FLAGS = ("threads", "quantize", "dtype", "kv_cache_dtype", "batch", "context")
# What says how to plan anything else than weights has no meaning beside --weights; these say which machine, and which
# part of it.
_SHARED_FLAGS = ("source", "reserve_cpus", "ignore_openmp_mask")
_OF_AUTO = ("batch", "context", "kv_cache_dtype", "numa_measured")
# The choices are those of the engine's settings (engine/config.py), which `plan` does without: a test holds the two
# together.
QUANTIZE = ("q8_0", "q4_0")
DTYPES = ("auto", "float32", "bfloat16", "float16")


def with_weight_flags(command: Any) -> Any:
    """Decorator: --weights and what goes with it."""
    for add in reversed(
        [
            click.option(
                "--weights",
                metavar="MODEL",
                help="Plan where this model's weights go instead of workers. `builtin`: the model that comes along.",
            ),
            with_some_settings(NumaSettings, *NUMA_SETTINGS),
            click.option(
                "--threads",
                envvar="HOMENODE_THREADS",
                cls=SettingOption,
                type=click.IntRange(1),
                metavar="N",
                help="Compute threads over all nodes. Default: one a core, less one core.",
            ),
            click.option(
                "--quantize",
                envvar="HOMENODE_QUANTIZE",
                cls=SettingOption,
                type=SuggestingChoice(QUANTIZE),
                help="As for `homenode serve`.",
            ),
            click.option(
                "--dtype",
                envvar="HOMENODE_DTYPE",
                cls=SettingOption,
                type=SuggestingChoice(DTYPES),
                default="auto",
                help="As for `homenode serve`.",
            ),
            click.option(
                "--kv-cache-dtype",
                envvar="HOMENODE_KV_CACHE_DTYPE",
                cls=SettingOption,
                type=SuggestingChoice(KV_CHOICES),
                default="auto",
                help="As for `homenode serve`; counts for --numa auto.",
            ),
            click.option(
                "--batch",
                type=click.IntRange(1),
                default=1,
                help="Sequences at once that --numa auto is to be fast for. [default: 1]",
            ),
            click.option(
                "--context", type=TokenCount(), default=1024, help="Tokens that each of them has. [default: 1024]"
            ),
        ]
    ):
        command = add(command)
    return command


def weight_flags(ctx: click.Context, values: dict[str, Any], with_stages: bool = False) -> dict[str, Any] | None:
    """The values of these flags, taken out of `values`; None where no weights are planned. UserError for flags that do
    not go together.

    `with_stages`: they are for --stages, which looks at some of them itself.
    """
    mine = {name: values.pop(name) for name in ("weights", *NUMA_SETTINGS, *_OWN_FLAGS)}
    mine["enable_expert_parallel"] = values.pop("enable_expert_parallel", False)
    given = {name for name in ctx.params if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE}
    if mine["weights"] is None:
        del mine["enable_expert_parallel"]  # which is about stages, too
        if not with_stages and (extra := sorted(given.intersection(mine))):
            raise UserError(
                f"{_flag(ctx, extra[0])} is about weights: name the model with --weights MODEL",
                param=_flag(ctx, extra[0]),
            )
        return None
    others = sorted(given - set(mine) - set(_SHARED_FLAGS) - {"as_json", "html"})
    if others:
        raise UserError(
            f"{_flag(ctx, others[0])} plans workers and --weights plans where weights go; ask for one of them",
            param=_flag(ctx, others[0]),
        )
    if mine["numa"] not in (None, "auto"):
        for name in sorted(given.intersection(_OF_AUTO)):
            warn(f"warning: {_flag(ctx, name)} is ignored: it is what --numa auto chooses by, and a policy is named")
    return mine


def _flag(ctx: click.Context, name: str) -> str:
    return next(param.opts[0] for param in ctx.command.params if param.name == name)


def plan_weights(flags: PlanFlags, asked: dict[str, Any], as_json: bool, html: Path | None = None) -> int:
    """Print the layout, and write it as a page to `html`. The result is the exit code. Raises what reading the host and
    the model and planning raise.
    """
    host, reserve = _host(flags)
    made = _layout(host, asked, reserve)
    for finding in claims_on(flags, host, [cpu for team in made.plan.teams for cpu in team.cpus]):
        warn(f"{finding.severity}: {finding.text}")
    if html is not None:
        from homenode.cli.output.html_page import write_page
        from homenode.cli.placement.weights_page import weights_page

        write_page(html, weights_page(asked["weights"], made))
    if as_json:
        print_json(_to_json(made))
        return 0
    from homenode.cli.output.report import print_fitted
    from homenode.cli.placement.draw_weight_nodes import draw_weight_nodes

    print_fitted(draw_weight_nodes(made))
    return 0


def _host(flags: PlanFlags) -> tuple[Host, int | None]:
    """The host, and the cores that are to be kept."""
    from homenode.cli.placement.plan_flags import open_source
    from homenode.host.discovery.read import read_host
    from homenode.host.plan.variables import reserve_cpus

    source = open_source(flags.source)
    host = read_host(source, accelerators=False)
    if flags.ignore_openmp_mask:
        host = replace(host, allowance=host.allowance.widened())
    return host, reserve_cpus(flags.reserve_cpus, source.env, cpu_workers=True)


def _layout(host: Host, asked: dict[str, Any], reserve: int | None) -> NumaLayout:
    from homenode.engine.api.planned_weights import WeightWishes, planned_weights

    wishes = WeightWishes(
        asked["weights"],
        build(NumaSettings, asked),
        asked["threads"],
        reserve,
        asked["quantize"],
        asked["dtype"],
        asked["kv_cache_dtype"],
        asked["batch"],
        asked["context"],
        asked["enable_expert_parallel"],
    )
    return planned_weights(host, wishes)


def _to_json(made: NumaLayout) -> dict[str, Any]:
    from homenode.cpuset import format_cpu_list

    teams = [
        {
            "node": team.node,
            "memory_node": team.memory_node,
            "threads": len(team.cpus),
            "cpus": format_cpu_list(team.cpus),
        }
        for team in made.plan.teams
    ]
    return {
        "asked": made.plan.asked,
        **made.weights.to_json(),
        "teams": teams,
        "findings": [finding.to_dict() for finding in made.plan.findings],
    }
