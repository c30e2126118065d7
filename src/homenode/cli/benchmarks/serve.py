"""`homenode bench serve`: what clients see of a running server, ours or another's."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from homenode.bench.runner import record
from homenode.cli.benchmarks.options import Numbers
from homenode.cli.flags.logs import with_command_log
from homenode.cli.flags.token_counts import TokenCount
from homenode.cli.output.report import OUT, plain_errors, print_note

if TYPE_CHECKING:
    from homenode.bench.serving.served import Served


@click.command()
@click.argument("url", default="http://127.0.0.1:8000")
@click.option(
    "--clients",
    type=Numbers(),
    default="1,8,32",
    show_default=True,
    help="Clients at once, one measurement for each number.",
)
@click.option(
    "--requests",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Completions each client asks for, one after the other.",
)
@click.option(
    "--prompt-tokens",
    type=TokenCount(1),
    default=256,
    show_default=True,
    help="Tokens of each prompt, drawn at random.",
)
@click.option("--gen-tokens", type=TokenCount(1), default=128, show_default=True, help="Tokens of each completion.")
@click.option(
    "--vocab-size",
    type=click.IntRange(200),
    default=30_000,
    show_default=True,
    help="Prompts are drawn from token ids below this.",
)
@click.option("--model", help="Name to ask for, where the server wants one.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Of the prompts; the same seed finds its prompts in a prefix cache.",
)
@click.option("--api-key", envvar="OPENAI_API_KEY", help="Key of the server. Default: OPENAI_API_KEY.")
@click.option(
    "--html",
    "html",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the figures as a page with pictures, one file by itself.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_command_log
def serve(
    url: str,
    clients: tuple[int, ...],
    requests: int,
    prompt_tokens: int,
    gen_tokens: int,
    vocab_size: int,
    model: str | None,
    seed: int,
    api_key: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Throughput and latencies of the server at URL under several streaming clients.

    Any server with /v1/completions of the OpenAI API will do that takes token ids as a prompt. Where it refuses the
    field ignore_eos that is left out, and answers may end before --gen-tokens.
    """
    import asyncio

    from homenode.bench.serving.clients import ClientLoad, run_accepted_load
    from homenode.bench.serving.served import served

    with plain_errors():
        results, load = [], ClientLoad(1, requests, prompt_tokens, gen_tokens, vocab_size, model, api_key=api_key)
        for number in clients:
            asked = replace(load, clients=number, seed=seed * 1000 + number)
            load, completions = asyncio.run(run_accepted_load(url, asked))
            results.append(served(number, prompt_tokens, completions))
        if load.left_out:
            print_note(f"the server refuses {' and '.join(load.left_out)}, which was left out")
        if html is not None:
            _write_page(html, url, prompt_tokens, gen_tokens, results)
        if as_json:
            found = record(url=url, gen_tokens=gen_tokens, results=[asdict(r) for r in results])
            click.echo(msgspec.json.encode(found).decode())
        else:
            _print_table(results)


def _write_page(file: Path, url: str, prompt_tokens: int, gen_tokens: int, results: Sequence[Served]) -> None:
    from homenode.cli.benchmarks.served_page import served_page
    from homenode.cli.output.html_page import write_page

    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    write_page(file, served_page(url, prompt_tokens, gen_tokens, now, results))


def _print_table(results: Sequence[Served]) -> None:
    from rich.box import SIMPLE
    from rich.table import Table

    columns = (
        "clients",
        "requests",
        "output tok/s",
        "total tok/s",
        "TTFT ms",
        "95 %",
        "ITL ms",
        "95 %",
        "longest",
        "TPOT ms",
    )
    table = Table(*columns, title="medians and 95th percentiles over all clients", box=SIMPLE, padding=(0, 1, 0, 0))
    for r in results:
        times = (r.ttft_median_s, r.ttft_p95_s, r.itl_median_s, r.itl_p95_s, r.itl_max_s, r.tpot_median_s)
        table.add_row(
            str(r.clients),
            str(r.requests),
            f"{r.output_tok_s:.1f}",
            f"{r.total_tok_s:.1f}",
            *(f"{1000 * seconds:.1f}" for seconds in times),
        )
    OUT.print(table)
