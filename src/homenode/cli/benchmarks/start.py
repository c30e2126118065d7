"""`homenode bench start`: how long a server takes to be ready, and in which phases."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from homenode.bench.runner import record
from homenode.cli.output.report import OUT, plain_errors, print_json
from homenode.units import format_bytes

if TYPE_CHECKING:
    from homenode.bench.serving.start import Start


@click.command()
@click.argument("model", required=False)
@click.option("--runs", type=click.IntRange(1), default=10, show_default=True, help="Starts that are measured.")
@click.option("--flags", default="", help='Of `homenode serve`, such as --flags "--threads 4".')
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def start(model: str | None, runs: int, flags: str, as_json: bool) -> None:
    """How long `homenode serve` takes from the command to a /health of 200, and its memory when nothing is asked.

    MODEL is served on a free port of this machine, once uncounted so that its file is in memory, then --runs times.
    The figures are medians. Nothing else should run meanwhile.
    """
    from homenode.bench.serving.start import measure_start, median_of
    from homenode.cli.benchmarks.progress import measuring

    with plain_errors():
        try:
            given = shlex.split(flags)
        except ValueError as error:
            raise click.BadParameter(f"{flags!r} cannot be split into words: {error}", param_hint="--flags") from None
        starts = []
        with measuring(runs + 1) as watch:
            for number in range(runs + 1):
                watch.started(f"start {number} of {runs}" if number else "a start that does not count")
                measured = measure_start(model, given)
                if number:
                    starts.append(measured)
                watch.ran()
        median = median_of(starts)
        if as_json:
            each = [asdict(one) for one in starts]
            print_json(record(model=model, flags=given, median=asdict(median), starts=each))
        else:
            _print_table(median, starts)


def _print_table(median: Start, starts: list[Start]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    from homenode.bench.serving.start import durations

    table = Table("process", "phase", box=SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("takes", "ends after"):
        table.add_column(heading, justify="right")
    for phase, seconds in durations(median.phases):
        table.add_row(phase.process, phase.name, f"{1000 * seconds:.0f} ms", f"{1000 * phase.end_s:.0f} ms")
    OUT.print(table)
    times = sorted(start.ready_s for start in starts)
    OUT.print(
        f"ready after {1000 * median.ready_s:.0f} ms (median of {len(starts)}; {1000 * times[0]:.0f} to "
        f"{1000 * times[-1]:.0f})",
        highlight=False,
    )
    if median.idle_bytes is not None:
        OUT.print(
            f"memory when nothing is asked: {format_bytes(median.idle_bytes)}, all processes together", highlight=False
        )
