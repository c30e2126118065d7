"""The flags that `plan`, `run`, `bind` and `verify` share, and what they mean together with the host's variables.

Importing this module must stay cheap: a whole `homenode plan` takes less than 0.3 s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.suggestions import SuggestingChoice
from homenode.errors import UserError

if TYPE_CHECKING:
    from homenode.host.placement.demand import Claim, Demand
    from homenode.host.placement.plan import Plan
    from homenode.host.topology.accelerators.visible import Visible
    from homenode.host.topology.host import Host
    from homenode.host.topology.source import Source

# Flags that take several values in a row, as the field's commands do (`--numa-bind-nodes 0 0 1 1`), and what such a value looks like.
_MANY = {
    "--numa-bind-nodes": re.compile(r"\d+$"),
    "--numa-bind-cpus": re.compile(r"[!+]*(\d[\dxXa-fA-F,-]*(all)?|all|same)$"),
    **dict.fromkeys(("--pd-peer-init-port", "--pd-peer-alloc-port", "--pd-pull-done-port"), re.compile(r"\d[\d,]*$")),
}


class ManyValuesCommand(click.Command):
    """A command whose flags in _MANY take all the values that follow them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args))


def spread(args: list[str], many: Mapping[str, re.Pattern[str]] = _MANY) -> list[str]:
    """`--numa-bind-nodes 0 0 1` -> `--numa-bind-nodes 0 --numa-bind-nodes 0 --numa-bind-nodes 1`; nothing after `--` is touched."""
    out: list[str] = []
    left = list(args)
    while left and left[0] != "--":
        word = left.pop(0)
        values = 0
        while word in many and left and (values == 0 or many[word].match(left[0])) and not left[0].startswith("--"):
            out += [word, left.pop(0)]
            values += 1
        if not values:
            out.append(word)
    return out + left


@dataclass(frozen=True)
class PlanFlags:
    """The values of the flags below."""

    strategy: str | None
    source: str | None
    device_type: str | None
    visible_devices: str | None
    local_rank: int | None
    reserve_cpus: int | None
    numa_bind: bool
    numa_bind_nodes: tuple[int, ...]
    numa_bind_cpus: tuple[str, ...]
    cpu_threads_bind: str | None
    memory_nodes: str | None
    workers: int | None
    devices: int | None
    data_parallel_size: int
    data_parallel_rank: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    api_server_count: int | None
    external_launcher: bool
    additional_config: str | None
    cpu_binding: bool | None
    ignore_openmp_mask: bool

    @classmethod
    def taken_from(cls, values: dict[str, Any]) -> PlanFlags:
        """The flags among a command's values; they are removed from `values`."""
        return cls(**{field.name: values.pop(field.name) for field in fields(cls)})

    @property
    def chosen_strategy(self) -> str:
        """What was asked for, in whichever way; `fair` when nothing was."""
        if self.numa_bind:
            if self.strategy not in (None, "numa-bind"):
                raise UserError(
                    f"--numa-bind and --strategy {self.strategy} contradict each other; give one", param="--numa-bind"
                )
            return "numa-bind"
        return self.strategy or ("cpu-threads" if self.cpu_threads_bind is not None else "fair")


_COUNT = click.IntRange(1, 4096)


def with_plan_flags(command: Any) -> Any:
    """Decorator for a click command: the flags that say how to plan."""
    for add in reversed(_flags()):
        command = add(command)
    return command


def _flags() -> list[Callable[[Any], Any]]:
    from homenode.host.placement.select import STRATEGIES

    return [
        click.option("--strategy", type=SuggestingChoice(tuple(STRATEGIES)), help="How to plan. Default: fair."),
        click.option("--from", "source", metavar="FILE", help="A recorded host, or one in a line such as 2s/4n/64c/smt2, instead of this machine."),
        click.option("--device-type", metavar="T", help="Ascend device type: A2, A3, 310P, 950. Default: told from the chips' names."),
        click.option("--visible-devices", metavar="LIST", help="Devices in the order of their ranks. Default: the vendor's variable."),
        click.option("--local-rank", type=click.IntRange(0, 4095), metavar="R", help="Plan this rank only."),
        click.option("--reserve-cpus", type=click.IntRange(0, 4096), metavar="N", help="Physical cores to keep for API server, tokenizer, scheduler, KV transfer."),
        click.option("--numa-bind", is_flag=True, help="The same as --strategy numa-bind."),
        click.option("--numa-bind-nodes", type=click.IntRange(0), multiple=True, metavar="N...", help="One NUMA node for each visible device."),
        click.option("--numa-bind-cpus", multiple=True, metavar="LIST...", help="One CPU list (numactl's grammar) for each visible device."),
        click.option("--cpu-threads-bind", metavar="auto|nobind|LIST|...", help="CPUs of each CPU worker; lists are joined by |."),
        click.option("--memory-nodes", metavar="LIST", help="Memory nodes that CPU workers may use."),
        click.option("--workers", type=_COUNT, metavar="N", help="CPU workers, on a host without accelerators."),
        click.option("--devices", type=_COUNT, metavar="N", help="Accelerators of the deployment. Default: DP x TP x PP."),
        click.option("--data-parallel-size", type=_COUNT, default=1, metavar="D", help="Engines on this host."),
        click.option("--data-parallel-rank", type=click.IntRange(0, 4095), default=0, metavar="R", help="Which of them this is."),
        click.option("--tensor-parallel-size", type=_COUNT, default=1, metavar="T", help="Workers that share each layer."),
        click.option("--pipeline-parallel-size", type=_COUNT, default=1, metavar="P", help="Stages of layers."),
        click.option("--api-server-count", type=_COUNT, metavar="A", help="API server processes. Default: one for each engine."),
        click.option("--external-launcher", is_flag=True, help="Ranks come from Ray or torchrun: the local rank alone counts the devices."),
        click.option("--additional-config", metavar="JSON", help='Such as {"enable_cpu_binding": false}.'),
        click.option("--cpu-binding/--no-cpu-binding", default=None, help="Whether the Ascend CPU binding is wanted (it is by default)."),
        click.option("--ignore-openmp-mask", is_flag=True, help="Plan with all CPUs of the cpuset when an OpenMP runtime has pinned this process by accident."),
    ]  # fmt: skip


def open_source(text: str | None) -> Source:
    """The machine to read: this one, a recording, or a synthetic one. UserError when it is none of them."""
    if text is None:
        from homenode.host.topology.source import LiveSource

        return LiveSource()
    if not Path(text).exists():
        from homenode.host.topology.synthetic import looks_synthetic, synthetic

        if looks_synthetic(text):
            return synthetic(text)
        raise UserError(
            f"--from {text}: there is no such file, and it is no one-line host such as 2s/4n/64c/smt2", param="--from"
        )
    from homenode.host.topology.snapshot import load_recording

    return load_recording(Path(text))


def plan_from_flags(
    flags: PlanFlags, *, before_start: bool = False, claims: tuple[Claim, ...] = ()
) -> tuple[Host, Plan]:
    """Read the host, ask the strategy. Raises PlacementError and UserError."""
    host, demand = demand_from_flags(flags, before_start=before_start, claims=claims)
    return host, plan_for(flags, host, demand)


def demand_from_flags(
    flags: PlanFlags, *, before_start: bool = False, claims: tuple[Claim, ...] = ()
) -> tuple[Host, Demand]:
    """The host the flags name, and what is to be placed on it.

    Raises PlacementError and UserError for any value that cannot be read or contradicts another, also where the
    strategy does not need it.
    """
    from dataclasses import replace

    from homenode.cli.given_settings import check_settings
    from homenode.host.topology.accelerators.visible import see
    from homenode.host.topology.read import read_host

    source = open_source(flags.source)
    host = read_host(source)
    if flags.ignore_openmp_mask:
        host = replace(host, allowance=host.allowance.widened())
    seen = see(host.accelerators, source.env, flags.visible_devices)
    host = replace(host, accelerators=seen.accelerators)
    demand = _demand(flags, seen, source.env, before_start, claims)
    check_settings(flags, host, demand, flags.chosen_strategy)
    return host, demand


def plan_for(flags: PlanFlags, host: Host, demand: Demand) -> Plan:
    """The plan of the chosen strategy, stamped with the host it was made for, with a finding for each setting that
    has no effect on it."""
    from dataclasses import replace

    from homenode.cli.given_settings import cpu_binding_off, settings_without_effect
    from homenode.host.placement.select import make_plan
    from homenode.host.topology.describe import fingerprint

    strategy = flags.chosen_strategy
    off = cpu_binding_off(flags, host, strategy)
    findings = [*([off] if off else []), *settings_without_effect(flags, host, demand, strategy)]
    return replace(make_plan(strategy, host, demand).with_findings(findings), host=fingerprint(host))


def _demand(
    flags: PlanFlags, seen: Visible, env: Mapping[str, str], before_start: bool, claims: tuple[Claim, ...]
) -> Demand:
    from homenode.host.placement.demand import Demand, Parallelism
    from homenode.host.placement.variables import (
        memory_nodes,
        memory_nodes_origin,
        reserve_cpus,
        threads_bind,
        threads_bind_origin,
    )

    parallelism = Parallelism(
        devices=flags.devices or 0,
        data_parallel_size=flags.data_parallel_size,
        tensor_parallel_size=flags.tensor_parallel_size,
        pipeline_parallel_size=flags.pipeline_parallel_size,
        api_server_count=flags.api_server_count,
        data_parallel_rank=flags.data_parallel_rank,
        external_launcher=flags.external_launcher,
    )
    return Demand(
        device_type=flags.device_type,
        visible=seen.devices,
        local_rank=flags.local_rank,
        before_start=before_start,
        reserve_cpus=reserve_cpus(flags.reserve_cpus, env, cpu_workers=flags.chosen_strategy == "cpu-threads"),
        parallelism=parallelism,
        numa_bind_nodes=flags.numa_bind_nodes or None,
        numa_bind_cpus=flags.numa_bind_cpus or None,
        threads_bind=threads_bind(flags.cpu_threads_bind, env) or "auto",
        memory_nodes=memory_nodes(flags.memory_nodes, env),
        workers=flags.workers,
        claims=claims,
        findings=seen.findings,
        threads_bind_origin=threads_bind_origin(flags.cpu_threads_bind, env),
        memory_nodes_origin=memory_nodes_origin(flags.memory_nodes, env),
    )
