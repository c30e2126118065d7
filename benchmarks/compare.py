"""Speed against other engines: `python -m benchmarks.compare --peer llama.cpp=FOLDER --peer openvino=VENV --models FOLDER --out FILE`.

Pairs of homenode and another engine are run one after the other, round by round over all combinations (A B A C A B A C ...), each pair between
two readings of the machine; a pair during which its CPUs moved does not count and is measured again. What is missing is skipped, saying so.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks import in_python
from benchmarks.comparison import Combination, Comparison, Pair
from benchmarks.contender import Peer, Side, Unavailable, gguf_of
from benchmarks.homenode_bench import own_side
from benchmarks.llama_cpp import LlamaCpp
from benchmarks.machine import machine, moved_between, own_version, without_folders
from benchmarks.pair import last_json
from benchmarks.turns import Turns
from benchmarks.workload import FORMATS, SHAPES, Workload
from homenode.cli.bench_options import Numbers

PEERS: dict[str, Callable[[Path], Peer]] = {
    "llama.cpp": LlamaCpp,
    "openvino": in_python.openvino,
    "onnxruntime": in_python.onnxruntime,
    "ctranslate2": in_python.ctranslate2,
}


class PeerFolder(click.ParamType[tuple[str, Path]]):
    """`llama.cpp=/opt/llama.cpp/bin`."""

    name = "NAME=FOLDER"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Path]:
        """The engine and where it is."""
        name, _, folder = str(value).partition("=")
        if name not in PEERS or not folder:
            self.fail(f"{value!r} is none of {', '.join(f'{known}=FOLDER' for known in PEERS)}", param, ctx)
        return name, Path(folder).expanduser().absolute()


@dataclass(frozen=True)
class Task:
    """One combination and how both of its sides are run."""

    combination: Combination
    ours: Side
    theirs: Side

    def commands(self) -> list[list[dict[str, Any]]]:
        """For `benchmarks.pair`."""
        return [[command.to_json() for command in side.commands] for side in (self.ours, self.theirs)]


def planned(
    peers: Mapping[str, Peer], models: Path, shapes: Sequence[str], formats: Sequence[str], workload: Workload
) -> tuple[list[Task], list[str]]:
    """Every combination that can be measured, and a line for each that cannot."""
    tasks, skipped = [], []
    for shape in shapes:
        for format in formats:
            for name, peer in peers.items():
                try:
                    ours = own_side(gguf_of(shape, format, models), workload)
                    sides = peer.sides(shape, format, models, workload)
                    tasks += [Task(Combination(shape, format, side.engine, side.variant), ours, side) for side in sides]
                except Unavailable as reason:
                    skipped.append(f"{name}, {shape} {format}: {reason}")
    return tasks, skipped


def measured(task: Task, wrap: Sequence[str], threads: int) -> Pair:
    """Run one pair. Raises Unavailable when a side fails or prints something else than expected."""
    argv = [*wrap, sys.executable, "-m", "benchmarks.pair", json.dumps(task.commands()), str(threads)]
    found = last_json(argv)
    try:
        ours, theirs = (side.read(output) for side, output in zip((task.ours, task.theirs), found["outputs"], strict=True))
    except (ValueError, KeyError, IndexError) as error:
        raise Unavailable(f"its output could not be read: {error!r}") from error
    first, *others = found["readings"]
    return Pair(
        task.combination, ours.rates, theirs.rates, theirs.version, moved_between([first, *ours.readings, *others]), found["readings"]
    )


def run_in_turns(tasks: list[Task], comparison: Comparison, pairs: int, wrap: Sequence[str], out: Path) -> None:
    """Measure all tasks; the file is written after every pair."""

    def measure(task: Task) -> str:
        pair = measured(task, wrap, comparison.workload.threads)
        comparison.pairs.append(pair)
        comparison.versions[task.theirs.engine] = pair.version
        comparison.save(out)
        return _line(pair)

    def give_up(task: Task, reason: str) -> None:
        comparison.skipped.append(without_folders(f"{_name(task)}: {reason}"))
        comparison.save(out)

    Turns(_name, measure, lambda task: len(comparison.counted(task.combination)), give_up).run(tasks, pairs)


def _name(task: Task) -> str:
    return f"{task.combination.shape} {task.combination.format}, {task.theirs.name}"


def _line(pair: Pair) -> str:
    if pair.moved:
        return f"does not count, {pair.moved}"
    return ", ".join(f"{case} {pair.ours[case] / rate:.2f}x" for case, rate in pair.theirs.items() if case in pair.ours)


@click.command()
@click.option("--peer", "peers", type=PeerFolder(), multiple=True, required=True, help=f"An engine and its folder; of {', '.join(PEERS)}.")
@click.option(
    "--models", type=click.Path(path_type=Path, exists=True, file_okay=False), required=True, help="Folder of <shape>-<type>.gguf."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The JSON file.")
@click.option("--shape", "shapes", multiple=True, default=SHAPES, show_default=True)
@click.option("--format", "formats", multiple=True, default=FORMATS, show_default=True)
@click.option("--variant", "variants", multiple=True, help="Only these variants, such as default; all of them otherwise.")
@click.option("--pairs", type=click.IntRange(1), default=3, show_default=True, help="Pairs to count for each combination.")
@click.option("--prompt-tokens", type=click.IntRange(1), default=512, show_default=True)
@click.option("--context", type=click.IntRange(1), default=16, show_default=True, help="Tokens before those that are decoded.")
@click.option("--gen-tokens", type=click.IntRange(1), default=32, show_default=True, help="Decoded for each sequence.")
@click.option("--batch", type=Numbers(), default="1,4,8,32", show_default=True)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--wrap", default="", help="A command to put before every pair, such as `taskset -c 2,3`.")
@click.option("--add", is_flag=True, help="Keep what the file holds of other combinations.")
def main(
    peers: tuple[tuple[str, Path], ...],
    models: Path,
    out: Path,
    shapes: tuple[str, ...],
    formats: tuple[str, ...],
    variants: tuple[str, ...],
    pairs: int,
    prompt_tokens: int,
    context: int,
    gen_tokens: int,
    batch: tuple[int, ...],
    threads: int,
    wrap: str,
    add: bool,
) -> None:
    """Measure homenode and other engines in turns on the same models."""
    workload = Workload(prompt_tokens, context, gen_tokens, batch, threads)
    found: dict[str, Peer] = {name: PEERS[name](folder) for name, folder in peers}
    tasks, skipped = planned(found, models.absolute(), shapes, formats, workload)
    tasks = [task for task in tasks if not variants or task.combination.variant in variants]
    for line in skipped:
        click.echo(f"skipped: {line}", err=True)
    comparison = Comparison(machine(), {}, workload)
    if add and out.exists():
        comparison = Comparison.load(out)
        if comparison.workload != workload:
            raise click.UsageError(f"{out} was measured with other tokens, batches or threads: {comparison.workload}")
    comparison.versions["homenode"] = own_version()
    comparison.skipped = sorted({*comparison.skipped, *map(without_folders, skipped)})
    comparison.forget(task.combination for task in tasks)
    for task in tasks:
        for side in (task.ours, task.theirs):
            comparison.commands[side.name] = [without_folders(command.shown()) for command in side.commands]
    run_in_turns(tasks, comparison, pairs, shlex.split(wrap), out)


if __name__ == "__main__":
    main()
