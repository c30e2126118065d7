"""The plan of a recorded host: the same as `homenode plan --from FILE --strategy S` makes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from homenode.errors import UserError
from homenode.host.discovery.read import read_host
from homenode.host.discovery.snapshot import parse_recording
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan
from homenode.host.plan.select import make_plan
from homenode.host.plan.settings_read import GivenSetting, host_kind, without_effect
from homenode.host.plan.strategy import Strategy
from homenode.host.plan.variables import (
    VARIABLES_OF,
    memory_nodes,
    memory_nodes_origin,
    reserve_cpus,
    threads_bind,
    threads_bind_origin,
    vllm_version,
)
from homenode.host.topology.accelerators.visible import see
from homenode.host.topology.describe import fingerprint
from homenode.host.topology.host import Host
from homenode.host.topology.source import LiveSource, Source
from homenode.testing.hosts.synthetic import looks_synthetic, synthetic

_LONGEST_LINE = 4096  # characters of a host in one line


def plan_text(text: str | None, strategy: str) -> tuple[Host, Plan]:
    """The plan for the host in `text`, None: this machine. Raises UserError and PlacementError."""
    return plan_source(_source_of(text), strategy)


def plan_source(source: Source, strategy: str) -> tuple[Host, Plan]:
    """The plan where nobody has said more than the strategy: what the variables of the host say counts."""
    host = read_host(source)
    seen = see(host.accelerators, source.env, None)
    host = replace(host, accelerators=seen.accelerators)
    env = source.env
    demand = Demand(
        visible=seen.devices,
        reserve_cpus=reserve_cpus(None, env, cpu_workers=strategy == Strategy.CPU_THREADS),
        threads_bind=threads_bind(None, env) or "auto",
        memory_nodes=memory_nodes(None, env),
        vllm_version=vllm_version(None, env),
        findings=seen.findings,
        threads_bind_origin=threads_bind_origin(None, env),
        memory_nodes_origin=memory_nodes_origin(None, env),
    )
    idle = without_effect(strategy, host_kind(host, demand), demand, _given(host.variables))
    made = make_plan(strategy, host, demand).with_findings(idle)
    return host, replace(made, host=fingerprint(host))


def _given(variables: Mapping[str, str]) -> list[GivenSetting]:
    """The settings that variables of the host have."""
    found = []
    for flag, names in VARIABLES_OF.items():
        if variable := next((name for name in names if variables.get(name)), None):
            shown = f"{variable}={variables[variable]}"[:80]
            found.append(GivenSetting(flag.removeprefix("--").replace("-", "_"), shown, is_flag=False))
    return found


def _source_of(text: str | None) -> Source:
    """The machine in `text`. Raises UserError for what is none."""
    if text is None:
        return LiveSource()
    line = text.strip()
    if len(line) <= _LONGEST_LINE and looks_synthetic(line):
        return synthetic(line)
    try:
        return parse_recording(json.loads(text), "the file")
    except (ValueError, RecursionError) as error:
        raise UserError(
            "the file is no recorded host (JSON of `homenode host record FILE`), and no host in one line such as "
            "2s/4n/64c/smt2",
            param="host",
        ) from error
