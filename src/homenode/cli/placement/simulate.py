"""`homenode simulate`: what a deployment would reach, from a recorded host, a model's figures and a workload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from homenode.cli.flags.logs import with_command_log
from homenode.cli.flags.many_values import ManyValuesCommand
from homenode.cli.flags.settings import NUMA_SETTINGS, build, with_some_settings
from homenode.cli.flags.suggestions import SuggestingChoice
from homenode.cli.output.engine_notes import tell_unused_settings
from homenode.cli.output.report import json_errors, print_json
from homenode.cli.placement.plan_flags import open_source
from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.units import parse_bytes

if TYPE_CHECKING:
    from homenode.host.topology.host import Host
    from homenode.model.spec import Checkpoint
    from homenode.simulate.compare import SimulationResult
    from homenode.simulate.run import ReportProgress
    from homenode.simulate.speeds import Speeds
    from homenode.simulate.workload import Workload

_SETTINGS = (
    "quantize", "dtype", "max_model_len", "threads", "max_num_batched_tokens", "max_num_seqs", "enable_chunked_prefill",
    "max_num_queued_requests", "max_num_queued_tokens", "max_preemptions", "request_timeout", "kv_cache_memory",
    "kv_cache_fraction", "block_size",
    "kv_cache_dtype", "enable_prefix_caching", "data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size",
    "stage_devices", "speculative", "num_speculative_tokens",
    "layer_split", "enable_expert_parallel", "expert_placement", "gpu_memory_utilization", "numa_bind",
    "numa_bind_nodes", "numa_bind_cpus",
    "cpu_threads_bind", "memory_nodes", "reserve_cpus", *NUMA_SETTINGS,
)  # fmt: skip
_MOST_HOSTS = 1024


class Size(click.ParamType[int]):
    """Bytes, such as 64GiB."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Above 0."""
        try:
            size = parse_bytes(value)
        except UserError as error:
            self.fail(error.message, param, ctx)
        if not size:
            self.fail("it must be more than 0", param, ctx)
        return size


@click.command(cls=ManyValuesCommand)
@click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="FILE|SHAPE",
    help="A recording of a host (`homenode host record`), or one line such as 2s/4n/64c/smt2; may be given several "
    "times. Default: this machine.",
)
@click.option(
    "--hosts",
    type=click.IntRange(1, _MOST_HOSTS),
    default=1,
    help="As many of each of them, all behind one router. [default: 1]",
)
@click.option(
    "--node-memory", type=Size(), metavar="SIZE", help="Memory of each NUMA node, where the recording does not tell."
)
@click.option(
    "--model",
    "model",
    required=True,
    metavar="MODEL|shape:...",
    help="A model, of which headers are read, `builtin`, or figures: "
    "shape:layers=24,hidden=896,heads=14,kv_heads=2,intermediate=4864,vocab=151936,format=Q4_0,tied=1.",
)
@click.option(
    "--workload",
    required=True,
    metavar="FILE|poisson:...|closed:...",
    help="A trace (CSV or JSONL), or poisson:rate=4,in=512,out=128,n=1000,seed=1, or "
    "closed:clients=8,in=256,out=128,n=64.",
)
@click.option("--requests", type=click.IntRange(1), help="Of a trace, the first ones only.")
@click.option(
    "--speed",
    type=click.FloatRange(1e-6, 1e6),
    default=1.0,
    help="Times as fast as the trace was recorded. [default: 1]",
)
@click.option("--compare", type=SuggestingChoice(["numa"]), help="Simulate every policy of --numa, and say which wins.")
@click.option(
    "--step-overhead",
    "step_us",
    type=click.FloatRange(0, 1e9),
    default=0.0,
    help="Microseconds of each step beside computing, as `homenode bench step` measures them. [default: 0]",
)
@click.option(
    "--acceptance",
    type=click.FloatRange(0, 1),
    help="Tokens are drafted, each of which is right with this chance if all before it are. How many are worth their "
    "rows is decided as the engine decides it. Default: none is drafted.",
)
@click.option(
    "--bench-model",
    metavar="FILE",
    help="What `homenode bench model MODEL --batch 1,8 --json` measured of this engine with weights of such a "
    "format. Default: what it reaches at AVX-512.",
)
@click.option(
    "--accelerator",
    metavar="read_gb_s=..,tops=..,memory=..,link_gb_s=..,link_us=..",
    help="What each accelerator reaches: nothing here knows it.",
)
@click.option(
    "--disk",
    metavar="size=..,read_gb_s=..",
    help="Each engine keeps KV on a disk (`homenode serve --kv-disk`) of this size, read at this speed.",
)
@with_some_settings(EngineConfig, *_SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_command_log
def simulate(
    sources: tuple[str, ...], hosts: int, node_memory: int | None, model: str, workload: str, requests: int | None,
    speed: float, compare: str | None, step_us: float, acceptance: float | None,
    bench_model: str | None, accelerator: str | None, disk: str | None, as_json: bool, **values: Any,
) -> None:  # fmt: skip
    """Simulate a deployment: the real scheduler, router and placement before a cost model in place of kernels.

    Each host has the engines that `homenode serve` with the same settings would start there. Speeds of a host are
    typical ones unless --numa-measured gives those that `homenode bench nodes --out FILE` measured.
    """
    with json_errors(as_json):
        from homenode.simulate.compare import compare_numa, engines_on_all, run_specs, winner
        from homenode.simulate.disk import read_disk

        asked = _workload(workload, requests, speed)
        config: EngineConfig = build(EngineConfig, values)
        if compare and config.placement.numa is not None:
            raise UserError(
                f"--compare numa simulates every policy of --numa, and --numa {config.placement.numa} names one; "
                "give one of them",
                param="numa",
            )
        speeds, config = _speeds(config, step_us, bench_model, accelerator)
        speeds = replace(speeds, acceptance=acceptance)
        if disk is not None:
            speeds = replace(speeds, disk=read_disk(disk))
        checkpoint = _checkpoint(model)
        machines = [host for source in sources or (None,) for host in [host_with_memory(source, node_memory)] * hosts]
        _warn_of_unused(config, machines, node_memory, accelerator)
        if compare:
            results = compare_numa(machines, config, checkpoint, speeds, asked, _silent)
            best, why = winner(results)
        else:
            specs = engines_on_all(machines, config, checkpoint, speeds)
            with _progress() as report_progress:
                results = [run_specs(config.placement.numa or specs[0].policy, specs, asked, report_progress)]
            best, why = results[0], results[0].specs[0].why
        if as_json:
            print_json(_to_json(asked, results, best if compare else None, why))
        else:
            _print(asked, results, why)


def _workload(text: str, requests: int | None, speed: float) -> Workload:
    from homenode.simulate.traces import read_trace
    from homenode.simulate.workload import synthetic

    made = synthetic(text)
    if made is not None and (requests is not None or speed != 1.0):
        raise UserError(
            f"--requests and --speed are for traces; {text.partition(':')[0]} says both itself (n, rate)",
            param="workload",
        )
    return made or read_trace(text, requests, speed)


def _speeds(
    config: EngineConfig, step_us: float, bench_model: str | None, accelerator: str | None
) -> tuple[Speeds, EngineConfig]:
    """Return what is known of speeds. The file of measured ones counts here without --numa too."""
    from homenode.model.weights.numa_choice import measured_speeds
    from homenode.simulate.achieved import TYPICAL, load_achieved
    from homenode.simulate.speeds import Speeds, read_accelerator

    placement = config.placement
    measured = measured_speeds(placement.numa_measured)
    if placement.numa is None:
        config = replace(config, placement=replace(placement, numa_measured=None))
    reached = TYPICAL if bench_model is None else load_achieved(bench_model)
    declared = None if accelerator is None else read_accelerator(accelerator)
    return Speeds(measured, reached, step_us / 1e6, declared), config


def _checkpoint(model: str) -> Checkpoint:
    from homenode.model.checkpoint.index import open_checkpoint
    from homenode.model.hub.locate import locate
    from homenode.simulate.shape import PREFIX, shape_checkpoint

    if model.startswith(PREFIX):
        return shape_checkpoint(model)
    return open_checkpoint(locate(model, offline=True))


def host_with_memory(source: str | None, memory: int | None) -> Host:
    """The host that --from names. `memory`: of nodes, or of a host without any, that do not tell."""
    from homenode.host.discovery.read import read_host

    host = read_host(open_source(source))
    if memory is None:
        return host
    nodes = tuple(replace(node, memory=memory) if node.memory is None else node for node in host.nodes)
    known = host.allowance.memory_available or (0 if nodes else memory)
    return replace(host, nodes=nodes, allowance=replace(host.allowance, memory_available=known))


def _warn_of_unused(
    config: EngineConfig, machines: Sequence[Host], node_memory: int | None, accelerator: str | None
) -> None:
    """Warn of what was given and has no effect on any of these hosts. The file of measured speeds always has
    one here.
    """
    from homenode.cli.output.report import ERR

    parallel = config.parallel
    there = any(host.accelerators.chips for host in machines) and parallel.stage_devices.strip() != "cpu"
    devices = ("torch:cuda:0" if there else "cpu",) * parallel.workers
    tell_unused_settings(replace(config, placement=replace(config.placement, numa_measured=None)), devices)
    tells_memory = all(host.nodes and all(node.memory is not None for node in host.nodes) for host in machines)
    for flag, given, why in (
        ("--node-memory", node_memory is not None and tells_memory, "the hosts tell the memory of their nodes"),
        ("--accelerator", accelerator is not None and not there, "no accelerator computes here"),
    ):
        if given:
            ERR.print(f"homenode: warning: {flag} is ignored: {why}", markup=False, highlight=False)


def _silent(name: str) -> ReportProgress:
    return lambda done, total: None


@contextmanager
def _progress() -> Iterator[ReportProgress]:
    """A bar of the requests that ended, on a terminal."""
    from rich.progress import Progress

    from homenode.cli.output.report import ERR

    with Progress(console=ERR, transient=True, disable=not ERR.is_terminal) as progress:
        task = progress.add_task("simulating", total=None)

        def report_progress(done: int, total: int) -> None:
            if done % 64 == 0:
                progress.update(task, completed=done, total=total)

        yield report_progress


def _to_json(
    workload: Workload, results: Sequence[SimulationResult], best: SimulationResult | None, why: str
) -> dict[str, Any]:
    found: dict[str, Any] = {"workload": workload.name, "results": [_result(result) for result in results], "why": why}
    return found if best is None else {**found, "winner": best.name}


def _result(result: SimulationResult) -> dict[str, Any]:
    if result.stats is None:
        return {"name": result.name, "error": result.error}
    engines = [
        {
            "weights": spec.weights, "kv_bytes": spec.kv_bytes, "num_blocks": spec.limits.num_blocks,
            "block_size": spec.limits.block_size,
            "policy": spec.policy, "why": spec.why, "stages": len(spec.stages), "requests": given, "busy": busy,
        }
        for spec, given, busy in zip(result.specs, result.by_engine, result.busy, strict=True)
    ]  # fmt: skip
    return {"name": result.name, **result.stats.to_json(), "engines": engines}


def _print(workload: Workload, results: Sequence[SimulationResult], why: str) -> None:
    from homenode.cli.output.fitted_text import FittedLine, FittedTable
    from homenode.cli.output.report import print_fitted

    columns = (
        "",
        "engines",
        "ended",
        "refused",
        "tok/s out",
        "TTFT ms",
        "p99",
        "ITL ms",
        "p99",
        "ends s",
        "p99",
    )
    title = f"simulated, not measured: {workload.name}; times are medians and p99"
    table = FittedTable(*columns, title=title, framed=False)
    for result in results:
        if result.stats is None:
            continue
        f = result.stats
        times = [_ms(value, 1000) for value in (f.ttft[0], f.ttft[2], f.itl[0], f.itl[2])] + [
            _ms(value, 1) for value in (f.latency[0], f.latency[2])
        ]
        table.add_row(
            result.name,
            str(len(result.specs)),
            str(f.finished),
            str(f.refused),
            f"{f.output_tok_s:.1f}",
            *times,
        )
    print_fitted(table)
    for result in results:
        if result.specs:
            print_fitted(FittedLine(f"{result.name}: weights on node {_weights(result)}"))
        if result.error:
            print_fitted(FittedLine(f"{result.name}: {result.error}"))
        elif result.stats and result.stats.reasons:
            print_fitted(FittedLine(f"{result.name}: refused: {result.stats.reasons}"))
    if why:
        print_fitted(FittedLine(why))


def _ms(value: float | None, factor: float) -> str:
    """Three digits at least, and none behind the point of what has as many in front of it."""
    if value is None:
        return "-"
    return f"{value * factor:.0f}" if value * factor >= 100 else f"{value * factor:.3g}"


def _weights(result: SimulationResult) -> str:
    """Return the weights of the first engines; those of the others are in --json."""
    from homenode.units import format_bytes

    shown = [
        ", ".join(f"{node}: {format_bytes(size)}" for node, size in spec.weights.items()) for spec in result.specs[:8]
    ]
    return " | ".join(shown) + (" | ..." if len(result.specs) > 8 else "")
