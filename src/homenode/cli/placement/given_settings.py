"""The settings of a plan that somebody gave, by flag or by variable, whether each can be read, and which of them have
no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.placement.plan_flags import PlanFlags
from homenode.errors import UserError
from homenode.host.plan.strategy import Strategy

if TYPE_CHECKING:
    from homenode.host.plan.demand import Demand
    from homenode.host.plan.settings_read import GivenSetting
    from homenode.host.topology.finding import Finding
    from homenode.host.topology.host import Host

_LONGEST_SHOWN = 60  # characters of a value
# What flags are when nobody gives them, where that is not None or nothing.
_DEFAULTS: Mapping[str, Any] = {
    "data_parallel_size": 1,
    "data_parallel_rank": 0,
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "external_launcher": False,
    "kv_transfer": False,
}


def given_settings(flags: PlanFlags, variables: Mapping[str, str]) -> tuple[GivenSetting, ...]:
    """Every flag that differs from its default, and the variables that say something where no flag does."""
    from homenode.host.plan.settings_read import ALWAYS_READ, GivenSetting
    from homenode.host.plan.variables import VARIABLES_OF

    found = []
    for name in (field.name for field in fields(flags) if field.name not in ALWAYS_READ):
        value = getattr(flags, name)
        if value not in ((), _DEFAULTS.get(name)):
            found.append(GivenSetting(name, _shown(name, value)))
            continue
        names = VARIABLES_OF.get(f"--{name.replace('_', '-')}", ())
        if variable := next((one for one in names if variables.get(one)), None):
            found.append(GivenSetting(name, f"{variable}={_cut(variables[variable])}", is_flag=False))
    return tuple(found)


def check_settings(flags: PlanFlags, host: Host, demand: Demand, strategy: str) -> None:
    """Read all values that were given, whether or not the strategy reads them, and look whether they go together.

    Raises PlacementError (bad_additional_config, bad_threads_bind, bad_parallelism, no_such_node, nodes_not_allowed)
    and UserError.
    """
    from homenode.host.plan.additional_config import cpu_binding_enabled
    from homenode.host.plan.parallelism import check_sizes
    from homenode.host.plan.resources.numactl import check_memory_nodes
    from homenode.host.plan.settings_read import host_kind, refuse_contradictions
    from homenode.host.plan.threads_bind import parse_threads_bind

    check_sizes(demand)
    cpu_binding_enabled(flags.additional_config, flags.cpu_binding)
    for text in _own_threads_binds(flags, host.variables):
        parse_threads_bind(text)
    if flags.memory_nodes is not None:
        check_memory_nodes(host, demand.memory_nodes or (), demand.memory_nodes_origin)
    refuse_contradictions(strategy, host_kind(host, demand), demand, given_settings(flags, host.variables))


def settings_without_effect(flags: PlanFlags, host: Host, demand: Demand, strategy: str) -> list[Finding]:
    """A finding for each setting that was given and has no part in what is asked for."""
    from homenode.host.plan.settings_read import host_kind, without_effect

    return without_effect(strategy, host_kind(host, demand), demand, given_settings(flags, host.variables))


def refuse_beside(ctx: click.Context, flag: str, why: str, allowed: Collection[str] = ()) -> None:
    """Raises UserError for the first flag on the command line that has no part in what `flag` does. `why`: what it
    does, as a clause.

    `allowed`: names of the parameters that go with it.
    """
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
        if given and flag not in parameter.opts and parameter.name not in allowed:
            name = parameter.secondary_opts[0] if ctx.params.get(parameter.name or "") is False else parameter.opts[0]
            raise UserError(f"{name} has no effect beside {flag}, {why}; leave one of them out", param=name)


def cpu_binding_off(flags: PlanFlags, host: Host, strategy: str) -> Finding | None:
    """Return a finding that ranks are left as they are, where the strategy is the Ascend binding and its switch says
    no.
    """
    from homenode.host.plan.additional_config import cpu_binding_enabled
    from homenode.host.plan.settings_read import is_ascend
    from homenode.host.topology.finding import Finding

    ascend = is_ascend(strategy) or (strategy == Strategy.NUMA_BIND and host.accelerators.has_own_strategies)
    if not ascend or cpu_binding_enabled(flags.additional_config, flags.cpu_binding):
        return None
    by = "enable_cpu_binding is false in --additional-config" if flags.cpu_binding is None else "--no-cpu-binding"
    message = f"CPU binding is switched off ({by})"
    return Finding("info", "cpu_binding_off", message, "`homenode run` leaves each rank where it is.")


def _own_threads_binds(flags: PlanFlags, variables: Mapping[str, str]) -> Iterator[str]:
    """The flag, else our variable. That of another program is read where it is used: it may say what only that
    program understands."""
    if flags.cpu_threads_bind is not None:
        yield flags.cpu_threads_bind
    elif text := variables.get("HOMENODE_CPU_THREADS_BIND"):
        yield text


def _shown(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    if name == "cpu_binding":
        return flag if value else "--no-cpu-binding"
    if value is True:
        return flag
    return f"{flag} {_cut(' '.join(map(str, value)) if isinstance(value, tuple) else str(value))}"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
