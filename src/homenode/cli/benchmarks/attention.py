"""`homenode bench attention`: attention of decoding by itself, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import msgspec

from homenode.bench.runner import record
from homenode.cli.benchmarks.options import HeadShapes, Names, meter_of, native_backend
from homenode.cli.flags.logs import with_command_log
from homenode.cli.flags.settings import with_some_settings
from homenode.cli.flags.token_counts import TokenCountList
from homenode.cli.output.report import OUT, plain_errors
from homenode.engine.config import EngineConfig
from homenode.kv_types import NAMED
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.bench.compute.attention import AttentionResult


@click.command()
@click.option(
    "--types",
    type=Names(),
    default="BF16,INT8",
    show_default=True,
    help=f"How keys and values are stored: {NAMED}.",
)
@click.option(
    "--shapes",
    type=HeadShapes(),
    default="14x2x64,32x8x64",
    show_default=True,
    help="Query heads x KV heads x elements of a head.",
)
@click.option(
    "--contexts", type=TokenCountList(), default="512,8192,32768", show_default=True, help="Tokens of each context."
)
@click.option("--batch", type=click.IntRange(1, 4096), default=1, show_default=True, help="Sequences decoded at once.")
@click.option(
    "--rows",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Tokens of each sequence in the step, as where drafts are verified.",
)
@with_some_settings(EngineConfig, "threads", "isa")
@click.option(
    "--repeat", type=click.IntRange(1, 100), default=2, show_default=True, help="Counted runs; the median is reported."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_command_log
def attention(
    types: tuple[str, ...],
    shapes: tuple[tuple[int, int, int], ...],
    contexts: tuple[int, ...],
    batch: int,
    rows: int,
    threads: int | None,
    isa: str | None,
    repeat: int,
    as_json: bool,
) -> None:
    """Speed of one layer's attention in decoding, for every kind of KV memory, shape and context, against what this
    machine can do."""
    from homenode.bench.compute.attention import AttentionPlan, check_plan, measure_attention
    from homenode.cli.benchmarks.progress import measuring

    with plain_errors():
        plan = AttentionPlan(tuple(name.lower() for name in types), shapes, contexts, batch, repeat, rows)
        check_plan(plan)
        backend = native_backend(threads, isa)
        with measuring(plan.points * (repeat + 1)) as watch:
            results = list(measure_attention(backend, meter_of(backend), plan, watch))
        statistics = backend.statistics()
        if as_json:
            found = record(backend=statistics, results=[asdict(r) for r in results])
            click.echo(msgspec.json.encode(found).decode())
        else:
            _print_table(results)
            OUT.print(
                f"Instruction set level {statistics['level']}, {format_count(statistics['threads'], 'thread')}, "
                f"{format_count(batch, 'sequence')}" + (f" of {format_count(rows, 'row')} each." if rows > 1 else "."),
                highlight=False,
            )


def _print_table(results: Sequence[AttentionResult]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(
        "type",
        "heads",
        "context",
        "us",
        "GB/s",
        "of reading",
        "GOPS",
        "reached",
        "limit",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for r in results:
        numbers = (
            f"{r.seconds * 1e6:.1f}",
            f"{r.gb_s:.1f}",
            f"{r.read_share:.0%}",
            f"{r.gops:.0f}",
            f"{r.fraction:.0%}",
        )
        limit = r.limit + ("" if r.steady else "?")
        table.add_row(r.type, f"{r.heads}x{r.kv_heads}x{r.head_dim}", str(r.context), *numbers, limit)
    OUT.print(table)
    limits = results[-1].ceilings
    OUT.print(
        "us of one layer; GB/s of keys and values, and the share of what reading alone reaches. This machine: "
        f"reads {limits['read_gb_s']:.1f} GB/s, "
        f"multiplies int8 {limits['int8_gops']:.0f}, bf16 {limits['bf16_gops']:.0f}, f32 {limits['f32_gops']:.0f} GOPS."
        + ("" if all(r.steady for r in results) else " ?: the machine changed during every run of this point."),
        highlight=False,
    )
