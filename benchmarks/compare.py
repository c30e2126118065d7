"""Speed against other engines:
`python -m benchmarks.compare --peer llama.cpp=FOLDER --peer openvino=VENV --models FOLDER --out FILE`.

Pairs of homenode and another engine are run one after the other, round by round over all combinations (A B A C A B A C
...), each pair between two readings of the machine; a pair during which its CPUs moved or others used them does not
count and is measured again. What is missing is skipped, saying so. A combination is measured case by case, all in one
go. Engines with a Python interface, ours among them, stay loaded meanwhile, so that a pair takes seconds; one that does
not count is repeated for two minutes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from benchmarks import in_python
from benchmarks.comparison import Comparison, Pair
from benchmarks.contender import Peer
from benchmarks.llama_cpp import LlamaCpp
from benchmarks.machine import without_folders
from benchmarks.tasks import Task, measured, planned, shown_commands
from benchmarks.turns import Turns
from benchmarks.workload import FORMATS, SHAPES, Workload
from homenode.bench.runner import machine, own_version
from homenode.cli.benchmarks.options import Numbers

PEERS: dict[str, Callable[[Path], Peer]] = {
    "llama.cpp": LlamaCpp,
    "openvino": in_python.openvino,
    "onnxruntime": in_python.onnxruntime,
    "ctranslate2": in_python.ctranslate2,
    "vllm": in_python.vllm,
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


def run_in_turns(tasks: list[Task], comparison: Comparison, pairs: int, wrap: Sequence[str], out: Path) -> None:
    """Measure all tasks until each of their pieces has so many pairs; the file is written after every go."""

    def count(task: Task) -> int:
        return min(len(comparison.counted(task.combination, piece.cases)) for piece in task.pieces)

    def measure(task: Task) -> str:
        wanted = [piece for piece in task.pieces if len(comparison.counted(task.combination, piece.cases)) < pairs]
        found = measured(replace(task, pieces=tuple(wanted)), wrap, comparison.workload.threads)
        comparison.pairs += found
        for version in filter(None, (pair.version for pair in found)):
            comparison.measured_with(task.combination.engine, version)
        comparison.save(out)
        return "; ".join(map(_line, found))

    def give_up(task: Task, reason: str) -> None:
        comparison.skipped.append(without_folders(f"{task.name}: {reason}"))
        comparison.save(out)

    Turns(lambda task: task.name, measure, count, give_up).run(tasks, pairs)


def _line(pair: Pair) -> str:
    if pair.discarded:
        return f"{', '.join(pair.theirs)} does not count, {pair.discarded}"
    return ", ".join(f"{case} {pair.ours[case] / rate:.2f}x" for case, rate in pair.theirs.items() if case in pair.ours)


@click.command()
@click.option(
    "--peer",
    "peers",
    type=PeerFolder(),
    multiple=True,
    required=True,
    help=f"An engine and its folder; of {', '.join(PEERS)}.",
)
@click.option(
    "--models",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Folder of <shape>-<type>.gguf.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The JSON file.")
@click.option("--shape", "shapes", multiple=True, default=SHAPES, show_default=True)
@click.option("--format", "formats", multiple=True, default=FORMATS, show_default=True)
@click.option(
    "--variant", "variants", multiple=True, help="Only these variants, such as default; all of them otherwise."
)
@click.option(
    "--pairs", type=click.IntRange(1), default=3, show_default=True, help="Pairs to count for each combination."
)
@click.option("--prompt-tokens", type=click.IntRange(1), default=512, show_default=True)
@click.option(
    "--context", type=click.IntRange(1), default=16, show_default=True, help="Tokens before those that are decoded."
)
@click.option("--gen-tokens", type=click.IntRange(1), default=32, show_default=True, help="Decoded for each sequence.")
@click.option("--batch", type=Numbers(), default="1,4,8,32", show_default=True)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--wrap", default="", help="A command to put before every pair, such as `taskset -c 2,3`.")
@click.option("--add", is_flag=True, help="Keep what the file holds of other combinations.")
@click.option("--complete", is_flag=True, help="Keep all that the file holds and measure what is missing.")
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
    complete: bool,
) -> None:
    """Measure homenode and other engines in turns on the same models."""
    workload = Workload(prompt_tokens, context, gen_tokens, batch, threads)
    found: dict[str, Peer] = {name: PEERS[name](folder) for name, folder in peers}
    tasks, skipped = planned(found, models.absolute(), shapes, formats, workload)
    tasks = [task for task in tasks if not variants or task.combination.variant in variants]
    for line in skipped:
        click.echo(f"skipped: {line}", err=True)
    comparison = Comparison(machine(), {}, workload)
    if (add or complete) and out.exists():
        comparison = Comparison.load(out)
        if comparison.workload != workload:
            raise click.UsageError(f"{out} was measured with other tokens, batches or threads: {comparison.workload}")
    comparison.measured_with("homenode", own_version())
    if not complete:
        comparison.forget(task.combination for task in tasks)
    comparison.skipped = sorted({*comparison.skipped, *map(without_folders, skipped)})
    for name, commands in shown_commands(tasks).items():
        comparison.commands[name] = commands
    run_in_turns(tasks, comparison, pairs, shlex.split(wrap), out)


if __name__ == "__main__":
    main()
