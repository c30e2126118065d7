"""`homenode bench transfer`: what handing KV over to another process costs, beside the bare calls it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from homenode.bench.runner import record
from homenode.cli.benchmarks.options import SizeList
from homenode.cli.flags.logs import with_command_log
from homenode.cli.flags.suggestions import SuggestingChoice
from homenode.cli.output.report import ERR, OUT, json_errors, print_json
from homenode.errors import UserError
from homenode.units import format_bytes

if TYPE_CHECKING:
    from homenode.bench.kv_transfer.transfer import Row


@click.command()
@click.option(
    "--page-sizes",
    type=SizeList(16 << 10),
    default="64KiB,1MiB,64MiB",
    show_default=True,
    help="Bytes of a page; multiples of 16 KiB.",
)
@click.option(
    "--batch", type=SizeList(), default="192MiB", show_default=True, help="Bytes moved at once: beyond the caches."
)
@click.option(
    "--channel",
    "channels",
    type=SuggestingChoice(("shm", "tcp", "tls", "nixl", "hccl")),
    multiple=True,
    default=("shm", "tcp"),
    show_default=True,
    help="Repeatable; tls: tcp with --peer-keys; nixl and hccl where they are installed.",
)
@click.option("--rounds", type=click.IntRange(1, 1000), default=9, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_command_log
def transfer(
    page_sizes: tuple[int, ...], batch: tuple[int, ...], channels: tuple[str, ...], rounds: int, as_json: bool
) -> None:
    """Hand-over and copies of KV between two processes of this host, against memcpy, bare round trips and bare TCP,
    measured in turns.

    Needs about three times the batch in memory for each channel.
    """
    from homenode.bench.kv_transfer.transfer import TransferBenchPlan, measure

    with json_errors(as_json):
        if len(batch) != 1:
            raise UserError("--batch: give one size; --page-sizes is the list that is measured over", param="--batch")
        with ERR.status("measuring") as status:
            rows = measure(
                TransferBenchPlan(
                    page_sizes,
                    batch[0],
                    rounds,
                    channels,
                    report_progress=lambda text: status.update(f"measuring: {text}"),
                )
            )
        if as_json:
            figures = [{**asdict(row), "median_us": row.median_us, "gb_s": row.gb_s} for row in rows]
            print_json(record(results=figures))
        else:
            _print(rows)


def _print(rows: Sequence[Row]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    table = Table(
        "page",
        "what",
        "moved",
        "us, median",
        "us, best",
        "GB/s",
        "x memcpy",
        "x bare",
        box=SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for row in rows:
        same = {other.what: other for other in rows if other.page_bytes == row.page_bytes}
        table.add_row(
            format_bytes(row.page_bytes) if row.page_bytes else "",
            row.what,
            format_bytes(row.nbytes) if row.nbytes else "",
            f"{row.median_us:.0f}",
            f"{row.best_us:.0f}",
            f"{row.gb_s:.2f}" if row.nbytes else "",
            _ratio(row, same.get("memcpy")) if row.nbytes else "",
            _ratio(row, same.get(_bare(row))),
        )
    OUT.print(table)


def _bare(row: Row) -> str:
    """Return what does the same with bare calls; empty: nothing does."""
    if row.what.startswith(("tcp, whole", "tls, whole")):
        return "tcp, bare"
    return (
        "two bare round trips" + (", paused" if ", paused" in row.what else "")
        if "control" in row.what or "hand-off" in row.what
        else ""
    )


def _ratio(row: Row, other: Row | None) -> str:
    """Return how much faster than the other, byte for byte: the median over rounds of the two of one round."""
    if other is None or other.nbytes != row.nbytes:
        return ""
    import statistics

    return f"{statistics.median(b / a for a, b in zip(row.seconds, other.seconds, strict=True)):.2f}"
