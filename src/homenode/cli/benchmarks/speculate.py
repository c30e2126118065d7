"""`homenode bench speculate`: what drafted tokens bring, by the kind of work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click
import msgspec

from homenode.bench.engine.draft_workloads import WORKLOADS
from homenode.bench.runner import record
from homenode.cli.benchmarks.options import Numbers
from homenode.cli.flags.logs import with_command_log
from homenode.cli.flags.settings import with_some_settings
from homenode.cli.output.report import OUT, plain_errors
from homenode.engine.config import EngineConfig
from homenode.errors import UserError
from homenode.spelling import with_suggestion

if TYPE_CHECKING:
    from homenode.bench.engine.speculate import SpeculationSpeed

_SETTINGS = (
    "threads", "isa", "kv_cache_memory", "max_model_len",
    "speculative", "speculative_model", "num_speculative_tokens", "speculative_config",
)  # fmt: skip


@click.command()
@click.argument("model", required=False)
@click.option(
    "--work",
    default=",".join(WORKLOADS),
    show_default=True,
    help="Kinds of work, joined by commas.",
    metavar="NAME,...",
)
@click.option(
    "--acceptance",
    default="",
    help="In place of work: drafts that are right at these rates, such as 0,0.5,0.8,1, behind a random prompt.",
    metavar="RATE,...",
)
@click.option("--tokens", type=click.IntRange(8, 4096), default=96, show_default=True, help="Tokens of an answer.")
@click.option("--turns", type=click.IntRange(1, 100), default=3, show_default=True, help="Turns; medians are reported.")
@click.option("--at-once", type=Numbers(), default="1", show_default=True, help="Answers made together, such as 1,8.")
@with_some_settings(EngineConfig, *_SETTINGS)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@with_command_log
def speculate(
    model: str | None,
    work: str,
    acceptance: str,
    tokens: int,
    turns: int,
    at_once: tuple[int, ...],
    as_json: bool,
    **settings: Any,
) -> None:
    """Speed of answers with drafted tokens and without, of one engine in turns; they are compared, too."""
    with plain_errors():
        config = EngineConfig.of(model, settings)
        if config.speculation.resolved().method == "off":
            raise UserError("nothing is drafted with --speculative off; leave it out", param="speculative")
        sizes = {"tokens": tokens, "turns": turns, "at_once": at_once}
        if acceptance:
            found = _of_rates(config, [_rate(text) for text in acceptance.split(",")], sizes, as_json)
        else:
            found = _of_work(config, [_work(name) for name in work.split(",")], sizes, as_json)
        if as_json:
            click.echo(msgspec.json.encode(record(results=[speed.to_json() for speed in found])).decode())


def _of_work(config: EngineConfig, names: list[str], sizes: dict[str, Any], as_json: bool) -> list[SpeculationSpeed]:
    from homenode.bench.engine.speculate import measure_workloads
    from homenode.engine.api.llm import LLM

    with LLM(config=config) as llm:

        def encode(text: str) -> list[int]:
            return llm.chat_ids([{"role": "user", "content": text}])

        return _shown(measure_workloads(llm.engine, encode, names, **sizes), as_json)


def _of_rates(config: EngineConfig, rates: list[float], sizes: dict[str, Any], as_json: bool) -> list[SpeculationSpeed]:
    from homenode.bench.engine.speculate import KnownAnswers, measure_rates
    from homenode.engine.api.local import LocalEngine
    from homenode.engine.model_path.locate import locate_model

    made: list[KnownAnswers] = []

    def make(*given: Any) -> KnownAnswers:
        made.append(KnownAnswers(*given))
        return made[0]

    engine = LocalEngine(locate_model(config), make_drafter=make)
    try:
        return _shown(measure_rates(engine, made[0], rates, **sizes), as_json)
    finally:
        engine.close()


def _shown(speeds: Iterable[SpeculationSpeed], as_json: bool) -> list[SpeculationSpeed]:
    """Print each line of the table when it is there."""
    from homenode.bench.engine.speculate import as_row

    found: list[SpeculationSpeed] = []
    widths: list[int] = []
    for speed in speeds:
        row = as_row(speed)
        if not found and not as_json:
            widths = [max(14, len(name)) for name in row]
            OUT.print("  ".join(name.rjust(width) for name, width in zip(row, widths, strict=True)), highlight=False)
        if not as_json:
            line = "  ".join(value.rjust(width) for value, width in zip(row.values(), widths, strict=True))
            OUT.print(line, highlight=False)
        found.append(speed)
    return found


def _work(name: str) -> str:
    if name.strip() in WORKLOADS:
        return name.strip()
    message = f"--work {name}: there is no such kind of work; there are {', '.join(WORKLOADS)}"
    raise UserError(with_suggestion(message, name, WORKLOADS), param="work")


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = -1.0
    if not 0.0 <= rate <= 1.0:
        raise UserError(f"--acceptance {text!r} is no rate; give numbers from 0 to 1", param="acceptance")
    return rate
