"""`homenode bench step`: what the engine costs a step beside computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import msgspec

from homenode.cli.benchmarks.options import Numbers, native_backend
from homenode.cli.flags.logs import with_command_log
from homenode.cli.flags.settings import with_some_settings
from homenode.cli.output.report import OUT, plain_errors
from homenode.engine.config import EngineConfig

if TYPE_CHECKING:
    from homenode.bench.engine.step import StepCost


@click.command()
@click.option("--sequences", type=Numbers(), default="1,8,32", show_default=True, help="Sequences decoded at once.")
@click.option("--steps", type=click.IntRange(10), default=200, show_default=True, help="Steps of each measurement.")
@click.option(
    "--step-ms",
    type=click.FloatRange(0.0, 1000.0),
    default=20.0,
    show_default=True,
    help="How long the threads compute in a step.",
)
@click.option(
    "--vocab-size", type=click.IntRange(1000, 1 << 20), default=151_936, show_default=True, help="Logits of a row."
)
@click.option(
    "--temperature",
    type=click.FloatRange(0.0, 2.0),
    default=0.0,
    show_default=True,
    help="Above 0: with top-k 40 and top-p 0.95.",
)
@with_some_settings(EngineConfig, "threads", "isa")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_command_log
def step(
    sequences: tuple[int, ...],
    steps: int,
    step_ms: float,
    vocab_size: int,
    temperature: float,
    threads: int | None,
    isa: str | None,
    as_json: bool,
) -> None:
    """Time of a step in which nothing computes: scheduling, arrays, frames. The model is replaced by multiplications of
    a known time."""
    from homenode.bench.engine.step import measure_steps

    with plain_errors():
        backend = native_backend(threads, isa)
        measured = [
            measure_steps(backend, n, steps, step_s=step_ms / 1000, vocab_size=vocab_size, temperature=temperature)
            for n in sequences
        ]
        if as_json:
            click.echo(
                msgspec.json.encode(
                    {"backend": backend.statistics(), "results": [asdict(m) for m in measured]}
                ).decode()
            )
        else:
            _print_table(measured)


def _print_table(measured: Sequence[StepCost]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    columns = ("sequences", "steps", "program", "sampling", "Python", "95 %", "share", "loop CPU", "front CPU")
    table = Table(
        *columns, title="microseconds a step; Python: nothing computes meanwhile", box=SIMPLE, padding=(0, 1, 0, 0)
    )
    for m in measured:
        times = (m.program_us, m.sampling_us, m.python_us, m.python_p95_us)
        table.add_row(
            str(m.sequences),
            str(m.steps),
            *(f"{t:.0f}" for t in times),
            f"{m.share:.2%}",
            f"{m.loop_cpu_us:.0f}",
            f"{m.front_cpu_us:.0f}",
        )
    OUT.print(table)
