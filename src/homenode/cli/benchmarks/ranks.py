"""`homenode bench ranks`: what workers of one engine pay for computing a step together."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from homenode.bench.runner import record
from homenode.cli.flags.logs import with_command_log
from homenode.cli.output.report import ERR, OUT, json_errors, print_json

if TYPE_CHECKING:
    from homenode.bench.engine.ranks import ExchangeTimes


@click.command()
@click.option("--ranks", default=2, show_default=True, type=click.IntRange(1, 64), help="Processes that sum.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(1, 256), help="Of each of them.")
@click.option(
    "--rows",
    "row_counts",
    type=click.IntRange(1, 1 << 16),
    multiple=True,
    default=(1, 64, 512),
    show_default=True,
    help="Repeatable.",
)
@click.option(
    "--columns",
    default=896,
    show_default=True,
    type=click.IntRange(1, 1 << 20),
    help="Width of the rows: the hidden size.",
)
@click.option("--rounds", default=2000, show_default=True, type=click.IntRange(1, 1_000_000))
@click.option(
    "--spin-us",
    type=click.IntRange(0, 1_000_000),
    help="Watch so long before sleeping; default 50, and 0 where CPUs are shared.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_command_log
def ranks(
    ranks: int, threads: int, row_counts: tuple[int, ...], columns: int, rounds: int, spin_us: int | None, as_json: bool
) -> None:
    """Sums over ranks and rows between stages, each a process on CPUs of its own, beside memcpy of as many bytes."""
    from homenode.bench.engine.ranks import RanksBenchPlan, measure

    with json_errors(as_json):
        with ERR.status("measuring"):
            found = measure(RanksBenchPlan([(rows, columns) for rows in row_counts], ranks, threads, rounds, spin_us))
        if as_json:
            print_json(record(results=[{**asdict(row), "nbytes": row.nbytes} for row in found]))
        else:
            _print(found)


def _print(found: list[ExchangeTimes]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(
        "what", "processes x threads", "values", "us, median", "us, memcpy", "GB/s", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    for row in found:
        shape, speed = f"{row.rows} x {row.columns}", f"{row.nbytes / row.seconds / 1e9:.2f}"
        table.add_row(
            row.what,
            f"{row.processes} x {row.threads}",
            shape,
            f"{row.seconds * 1e6:.1f}",
            f"{row.copy_seconds * 1e6:.1f}",
            speed,
        )
    OUT.print(table)
