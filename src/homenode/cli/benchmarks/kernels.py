"""`homenode bench kernels`: the matrix products by themselves, as a table, as JSON, and as a roofline drawing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from homenode.bench.runner import record
from homenode.cli.benchmarks.options import Names, Shapes, meter_of, native_backend
from homenode.cli.flags.logs import with_command_log
from homenode.cli.flags.settings import with_some_settings
from homenode.cli.flags.token_counts import TokenCountList
from homenode.cli.output.report import OUT, plain_errors
from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.bench.compute.kernels import KernelResult


@click.command()
@click.option(
    "--formats", type=Names(), default="BF16,Q8_0,Q4_0,Q4_K,Q6_K", show_default=True, help="Storage formats, or `all`."
)
@click.option(
    "--shapes",
    type=Shapes(),
    default="1024x4096,4096x1024,2048x8192",
    show_default=True,
    help="Inputs x outputs of the matrices.",
)
@click.option(
    "--tokens", type=TokenCountList(), default="1,4,8,32,512", show_default=True, help="Rows multiplied at once."
)
@with_some_settings(EngineConfig, "threads", "isa")
@click.option(
    "--repeat", type=click.IntRange(1, 100), default=2, show_default=True, help="Counted runs; the median is reported."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw a roofline into this file: .svg, or .png with matplotlib.",
)
@with_command_log
def kernels(
    formats: tuple[str, ...],
    shapes: tuple[tuple[int, int], ...],
    tokens: tuple[int, ...],
    threads: int | None,
    isa: str | None,
    repeat: int,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Speed of the matrix products, for every format, shape and number of tokens, against what this machine can do."""
    from homenode.bench.compute.kernels import KernelPlan, check_plan, measure_kernels
    from homenode.bench.compute.stored import FORMATS
    from homenode.cli.benchmarks.progress import measuring

    with plain_errors():
        if plot is not None:
            _check_plot(plot)
        backend = native_backend(threads, isa)
        plan = KernelPlan(FORMATS if formats == ("ALL",) else formats, shapes, tokens, repeat)
        check_plan(plan, backend.weight_types())
        with measuring(plan.points * (repeat + 1)) as watch:
            results = list(measure_kernels(backend, meter_of(backend), plan, watch))
        statistics = backend.statistics()
        if plot is not None:
            _draw(
                results,
                f"Matrix products: {statistics['level']}, {format_count(statistics['threads'], 'thread')}",
                plot,
            )
        if as_json:
            found = record(backend=statistics, results=[asdict(r) for r in results])
            click.echo(msgspec.json.encode(found).decode())
        else:
            _print_table(results)
            others = ", ".join(name for name in statistics["levels"] if name != statistics["level"])
            OUT.print(f"Instruction set level {statistics['level']}; with --isa also {others}.", highlight=False)


def _check_plot(file: Path) -> None:
    """Before minutes are spent on measuring: can the drawing be made and stored?"""
    if file.suffix not in (".svg", ".png"):
        raise UserError(f"--plot {file}: the name must end in .svg or .png", param="--plot")
    if not os.access(file.parent, os.W_OK):
        raise UserError(f"--plot {file}: no file can be made in {file.parent}", param="--plot")
    if file.suffix == ".png":
        from homenode.bench.compute.roofline_png import check_matplotlib

        check_matplotlib()


def _draw(results: Sequence[KernelResult], title: str, file: Path) -> None:
    if file.suffix == ".png":
        from homenode.bench.compute.roofline_png import write_roofline_png

        write_roofline_png(results, title, file)
        return
    from homenode.bench.compute.roofline import draw_roofline

    file.write_text(draw_roofline(results, title), encoding="utf-8")


def _print_table(results: Sequence[KernelResult]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(
        "format",
        "K x N",
        "tokens",
        "GB/s",
        "GOPS",
        "by CPU",
        "ceiling",
        "reached",
        "limit",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for r in results:
        numbers = (f"{r.gb_s:.1f}", f"{r.gops:.0f}", f"{r.cpu_gops:.0f}", f"{r.ceiling_gops:.0f}", f"{r.fraction:.0%}")
        limit = r.limit + ("" if r.steady else "?")
        table.add_row(r.format, f"{r.columns}x{r.rows}", str(r.tokens), *numbers, limit)
    OUT.print(table)
    limits = results[-1].ceilings
    OUT.print(
        "GB/s of weights; GOPS and ceiling in 1e9 operations a second. This machine: reads "
        f"{limits['read_gb_s']:.1f} GB/s, multiplies "
        f"int8 {limits['int8_gops']:.0f}, int6 {limits['int6_gops']:.0f}, bf16 {limits['bf16_gops']:.0f}, f32 "
        f"{limits['f32_gops']:.0f} GOPS."
        + ("" if all(r.steady for r in results) else " ?: the machine changed during every run of this point."),
        highlight=False,
    )
