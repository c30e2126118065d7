"""`homenode bench`: measurements of this machine, as a table or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
import msgspec

from homenode.cli.options import with_some_settings
from homenode.cli.report import ERR, OUT, loading_bar, plain_errors
from homenode.engine.config import ComputeConfig, EngineConfig
from homenode.errors import UserError

if TYPE_CHECKING:
    from homenode.bench.model import Result


class _Numbers(click.ParamType[tuple[int, ...]]):
    """`1,4,8`."""

    name = "N,N,..."

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        if not all(p.strip().isdecimal() and int(p) > 0 for p in parts):
            self.fail(f"{value!r} is no list of numbers above 0, such as 1,4,8", param, ctx)
        return tuple(int(p) for p in parts)


@click.group()
def bench() -> None:
    """Measure how fast things run here."""


@bench.command()
@click.argument("model", required=False)
@click.option("--prompt-tokens", type=click.IntRange(0), default=512, show_default=True, help="Tokens of the prompt; 0: no prefill test.")
@click.option(
    "--gen-tokens", type=click.IntRange(0), default=128, show_default=True, help="Tokens decoded for each sequence; 0: no decode test."
)
@click.option("--batch", type=_Numbers(), default="1", show_default=True, help="Batch sizes to decode at, such as 1,4,8.")
@click.option("--context", type=click.IntRange(0), default=0, show_default=True, help="Tokens already in the context when decoding begins.")
@with_some_settings(EngineConfig, "threads", "isa", "quantize", "dtype")
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="Counted runs; the median is reported.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
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
    repeat: int,
    as_json: bool,
) -> None:
    """Prefill and decode speed of MODEL, through the same program the server runs."""
    from homenode.bench.model import Plan, measure
    from homenode.engine.build import make_backend
    from homenode.engine.sizing import choose_cpus
    from homenode.host.topology.allowance import Allowance
    from homenode.model.checkpoint import open_checkpoint
    from homenode.model.locate import locate
    from homenode.model.weights.load import load_model

    with plain_errors():
        if prompt_tokens == 0 and gen_tokens == 0:
            raise UserError("nothing to measure: both --prompt-tokens and --gen-tokens are 0", param="--prompt-tokens")
        backend = make_backend(ComputeConfig(threads=threads, isa=isa), choose_cpus(threads, Allowance.of_process()))
        checkpoint = open_checkpoint(locate(model))
        with loading_bar("loading") as update:
            loaded = load_model(checkpoint, backend, quantize=quantize, dtype=dtype, progress=update)
        with ERR.status("measuring") as status:
            results = measure(
                loaded, backend, Plan(prompt_tokens, gen_tokens, batch, context, repeat), started=lambda what: status.update(what)
            )
        if as_json:
            found = {"model": str(checkpoint.path), "backend": backend.statistics(), "results": [asdict(r) for r in results]}
            click.echo(msgspec.json.encode(found).decode())
        else:
            _print_table(results)


def _print_table(results: Sequence[Result]) -> None:
    from rich.table import Table

    table = Table(
        "test", "batch", "tokens", "context", "seconds", "tok/s", title="tokens per second over all sequences, median of the runs"
    )
    for result in results:
        numbers = (result.batch, result.tokens, result.context)
        table.add_row(result.test, *map(str, numbers), f"{result.seconds:.3f}", f"{result.tok_s:.1f}")
    OUT.print(table)
