"""`homenode bench model`: prefill and decode speed of a model, held against what the machine allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click
import msgspec

from homenode.bench.runner import record
from homenode.cli.benchmarks.options import Numbers, engine_backend, meter_of
from homenode.cli.flags.logs import with_command_log
from homenode.cli.flags.settings import NUMA_SETTINGS, with_some_settings
from homenode.cli.flags.token_counts import TokenCount
from homenode.cli.output.engine_notes import tell_unused_settings
from homenode.cli.output.loading_progress import loading_progress
from homenode.cli.output.report import ERR, OUT, plain_errors, print_note
from homenode.engine.config import EngineConfig
from homenode.errors import UserError

if TYPE_CHECKING:
    from homenode.bench.compute.model_result import ModelBenchResult


@click.command()
@click.argument("model", required=False)
@click.option(
    "--prompt-tokens",
    type=TokenCount(),
    default=512,
    show_default=True,
    help="Tokens of the prompt; 0: no prefill test.",
)
@click.option(
    "--gen-tokens",
    type=TokenCount(),
    default=128,
    show_default=True,
    help="Tokens decoded for each sequence; 0: no decode test.",
)
@click.option(
    "--batch", type=Numbers(), default="1", show_default=True, help="Batch sizes to decode at, such as 1,4,8."
)
@click.option(
    "--context",
    type=TokenCount(),
    default=0,
    show_default=True,
    help="Tokens already in the context when decoding begins.",
)
@with_some_settings(
    EngineConfig, "threads", "isa", "quantize", "dtype", "packed_cache", "kv_cache_dtype", *NUMA_SETTINGS
)
@click.option(
    "--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="Counted runs; the median is reported."
)
@click.option("--phases", is_flag=True, help="Also show where the time of a step goes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_command_log
def model(
    model: str | None,
    prompt_tokens: int,
    gen_tokens: int,
    batch: tuple[int, ...],
    context: int,
    threads: int | None,
    isa: str | None,
    quantize: str | None,
    dtype: str,
    packed_cache: str,
    kv_cache_dtype: str,
    repeat: int,
    phases: bool,
    as_json: bool,
    **numa: Any,
) -> None:
    """Prefill and decode speed of MODEL, through the same program the server runs."""
    from homenode.bench.compute.model import ModelBenchPlan, measure
    from homenode.cli.benchmarks.progress import measuring
    from homenode.engine.memory.numa import matrix_policy_of
    from homenode.engine.memory.report import log_memory
    from homenode.model.checkpoint.index import open_checkpoint
    from homenode.model.hub.locate import locate
    from homenode.model.weights.load import load_model
    from homenode.model.weights.packed_cache import packed_folder

    with plain_errors():
        if prompt_tokens == 0 and gen_tokens == 0:
            raise UserError("nothing to measure: both --prompt-tokens and --gen-tokens are 0", param="--prompt-tokens")
        config = EngineConfig.of(model, {"threads": threads, "isa": isa, "quantize": quantize, "dtype": dtype, **numa})
        tell_unused_settings(config)
        path = locate(model)
        checkpoint, folder = open_checkpoint(path), packed_folder(packed_cache, path)
        backend, place, host = engine_backend(config, checkpoint)
        with loading_progress(print_note) as update:
            loaded = load_model(
                checkpoint,
                backend,
                quantize=quantize,
                dtype=dtype,
                progress=update,
                packed_cache=folder,
                matrix_policy_of=matrix_policy_of(place),
            )
        log_memory(backend, place, host)
        for note in loaded.notes:
            ERR.print(note, markup=False, highlight=False)
        plan = ModelBenchPlan(prompt_tokens, gen_tokens, batch, context, repeat, kv_cache_dtype, phases)
        with measuring(plan.tests * (repeat + 1)) as watch:
            results = measure(loaded, backend, meter_of(backend), plan, watch)
        if as_json:
            figures = [asdict(r) for r in results]
            found = record(model=str(checkpoint.path), backend=backend.statistics(), results=figures)
            click.echo(msgspec.json.encode(found).decode())
        else:
            _print_table(results)
            for result in results:
                if result.phases:
                    _print_phases(result)


def _print_table(results: Sequence[ModelBenchResult]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    title = "tok/s of all sequences, the median run; the ceiling is what the machine allowed meanwhile"
    table = Table(
        "test",
        "batch",
        "tokens",
        "context",
        "tok/s",
        "best step",
        "ceiling",
        "reached",
        "limit",
        title=title,
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for r in results:
        numbers = (
            *map(str, (r.batch, r.tokens, r.context)),
            f"{r.tok_s:.1f}",
            f"{r.best_step_tok_s:.1f}",
            f"{r.ceiling_tok_s:.1f}",
            f"{r.fraction:.0%}",
        )
        table.add_row(r.test, *numbers, r.limit)
    OUT.print(table)
    limits = results[-1].ceilings
    trips = ", ".join(f"{t:.0f}" for t in results[-1].placement["after"]["round_trip_ns"])
    OUT.print(
        f"This machine: reads {limits['read_gb_s']:.1f} GB/s, multiplies int8 {limits['int8_gops']:.0f}, int6 "
        f"{limits['int6_gops']:.0f}, "
        f"bf16 {limits['bf16_gops']:.0f}, f32 {limits['f32_gops']:.0f} GOPS"
        + (f"; threads answer each other in {trips} ns" if trips else ""),
        highlight=False,
    )
    for note in filter(None, map(_note, results)):
        OUT.print(note, highlight=False)


def _print_phases(result: ModelBenchResult) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    title = f"where a step of {result.test}, batch {result.batch}, spends its time, as its first thread sees it"
    table = Table("phase", "ms", "share", "waiting", "of its ceiling", title=title, box=SIMPLE, padding=(0, 1, 0, 0))
    for p in result.phases:
        reached = f"{p.fraction:.0%}" if p.fraction else ""
        table.add_row(p.name, f"{1e3 * p.seconds:.3f}", f"{p.share:.1%}", f"{p.waited / p.seconds:.0%}", reached)
    OUT.print(table)


def _note(result: ModelBenchResult) -> str | None:
    """Return what has to be known about a result before it is believed."""
    name = f"{result.test}, batch {result.batch}"
    if not result.steady:
        return (
            f"{name}: the machine changed during every run ({result.discarded[-1]}); the figures are of them all "
            "the same"
        )
    if result.discarded:
        return (
            f"{name}: runs discarded, as the machine changed meanwhile: {len(result.discarded)} (the last: "
            f"{result.discarded[-1]})"
        )
    if result.fraction > 1 and result.limit == "read":
        return f"{name}: above the ceiling, which is memory's; this model's weights come from a cache"
    return None
