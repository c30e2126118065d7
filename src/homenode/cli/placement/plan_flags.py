"""The flags that `plan`, `run`, `bind` and `verify` share, and the host they name.

Importing this module must stay cheap: a whole `homenode plan` takes less than 0.3 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.suggestions import SuggestingChoice
from homenode.errors import UserError
from homenode.host.plan.strategy import Strategy

if TYPE_CHECKING:
    from homenode.host.topology.source import Source


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
    kv_transfer: bool
    vllm_version: str | None
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
        """Return what was asked for, in whichever way; `fair` when nothing was."""
        if self.numa_bind:
            if self.strategy not in (None, Strategy.NUMA_BIND):
                raise UserError(
                    f"--numa-bind and --strategy {self.strategy} contradict each other; give one", param="--numa-bind"
                )
            return Strategy.NUMA_BIND
        return self.strategy or (Strategy.CPU_THREADS if self.cpu_threads_bind is not None else Strategy.FAIR)


_COUNT = click.IntRange(1, 4096)


def with_plan_flags(command: Any) -> Any:
    """Decorator for a click command: the flags that say how to plan."""
    for add in reversed(_flags()):
        command = add(command)
    return command


def _flags() -> list[Callable[[Any], Any]]:
    from homenode.host.plan.select import STRATEGIES

    return [
        click.option("--strategy", type=SuggestingChoice(tuple(STRATEGIES)), help="How to plan. Default: fair."),
        click.option(
            "--from",
            "source",
            metavar="FILE",
            help="A recorded host, or one in a line such as 2s/4n/64c/smt2, instead of this machine.",
        ),
        click.option(
            "--device-type",
            metavar="T",
            help="Ascend device type: A2, A3, 310P, 950. Default: told from the chips' names.",
        ),
        click.option(
            "--visible-devices",
            metavar="LIST",
            help="Devices in the order of their ranks. Default: the vendor's variable.",
        ),
        click.option("--local-rank", type=click.IntRange(0, 4095), metavar="R", help="Plan this rank only."),
        click.option(
            "--reserve-cpus",
            type=click.IntRange(0, 4096),
            metavar="N",
            help="Physical cores to keep for API server, tokenizer, scheduler, KV transfer.",
        ),
        click.option("--numa-bind", is_flag=True, help="The same as --strategy numa-bind."),
        click.option(
            "--numa-bind-nodes",
            type=click.IntRange(0),
            multiple=True,
            metavar="N...",
            help="One NUMA node for each visible device.",
        ),
        click.option(
            "--numa-bind-cpus",
            multiple=True,
            metavar="LIST...",
            help="One CPU list (numactl's grammar) for each visible device.",
        ),
        click.option(
            "--cpu-threads-bind", metavar="auto|nobind|LIST|...", help="CPUs of each CPU worker; lists are joined by |."
        ),
        click.option("--memory-nodes", metavar="LIST", help="Memory nodes that CPU workers may use."),
        click.option("--kv-transfer", is_flag=True, help="CPU workers hand over KV, for which more CPUs are kept."),
        click.option(
            "--vllm-version",
            metavar="V",
            help="The release of vLLM whose reserve is kept, such as 0.31. Default: today's rule, that of 0.32; `run` "
            "reads it from the program.",
        ),
        click.option("--workers", type=_COUNT, metavar="N", help="CPU workers, on a host without accelerators."),
        click.option(
            "--devices", type=_COUNT, metavar="N", help="Accelerators of the deployment. Default: DP x TP x PP."
        ),
        click.option("--data-parallel-size", type=_COUNT, default=1, metavar="D", help="Engines on this host."),
        click.option(
            "--data-parallel-rank", type=click.IntRange(0, 4095), default=0, metavar="R", help="Which of them this is."
        ),
        click.option(
            "--tensor-parallel-size", type=_COUNT, default=1, metavar="T", help="Workers that share each layer."
        ),
        click.option("--pipeline-parallel-size", type=_COUNT, default=1, metavar="P", help="Stages of layers."),
        click.option(
            "--api-server-count", type=_COUNT, metavar="A", help="API server processes. Default: one for each engine."
        ),
        click.option(
            "--external-launcher",
            is_flag=True,
            help="Ranks come from Ray or torchrun: the local rank alone counts the devices.",
        ),
        click.option("--additional-config", metavar="JSON", help='Such as {"enable_cpu_binding": false}.'),
        click.option(
            "--cpu-binding/--no-cpu-binding",
            default=None,
            help="Whether the Ascend CPU binding is wanted (it is by default).",
        ),
        click.option(
            "--ignore-openmp-mask",
            is_flag=True,
            help="Plan with all CPUs of the cpuset when an OpenMP runtime has pinned this process by accident.",
        ),
    ]


def open_source(text: str | None) -> Source:
    """The machine to read: this one, a recording, or a synthetic one. UserError when it is none of them."""
    if text is None:
        from homenode.host.topology.source import LiveSource

        return LiveSource()
    if not Path(text).exists():
        from homenode.testing.hosts.synthetic import looks_synthetic, synthetic

        if looks_synthetic(text):
            return synthetic(text)
        raise UserError(
            f"--from {text}: there is no such file, and it is no one-line host such as 2s/4n/64c/smt2", param="--from"
        )
    from homenode.host.discovery.snapshot import load_recording

    return load_recording(Path(text))
