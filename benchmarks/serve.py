"""Served throughput against llama-server: `python -m benchmarks.serve --llama.cpp FOLDER --models FOLDER --out FILE`.

`homenode serve` and `llama-server` in turns, on the same GGUF file with the same number of threads, under the same load
of streaming clients, each pair between two readings of the machine; a pair beside which others used the CPUs does not
count and is measured again. A load lasts longer than the host of a virtual machine leaves its CPUs in one place: during
how many pairs they moved is told.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from benchmarks.contender import gguf_of
from benchmarks.machine import without_folders
from benchmarks.others import disturbed
from benchmarks.pair import last_json
from benchmarks.served import ServedCombination, ServedComparison, ServedPair
from benchmarks.servers import HUGE_PAGES, Server, homenode_server, llama_server
from benchmarks.turns import Turns
from homenode.bench.runner import machine, own_version
from homenode.bench.serving.clients import ClientLoad
from homenode.bench.serving.served import Served
from homenode.cli.benchmarks.options import Names, Numbers

_VOCABULARY = 100_000  # of which prompts are drawn; every shape here has more


@dataclass(frozen=True)
class Place:
    """Where things are and how they are run. `folder`: llama.cpp's programs."""

    folder: Path
    models: Path
    threads: int
    wrap: tuple[str, ...]

    def servers(self, combination: ServedCombination, load: ClientLoad) -> tuple[Server, Server]:
        """Ours and theirs. Raises Unavailable when a file is missing."""
        model = gguf_of(combination.shape, combination.format, self.models)
        huge = combination.variant == HUGE_PAGES
        return homenode_server(model, self.threads), llama_server(self.folder, model, self.threads, load, huge=huge)


def measured(
    combination: ServedCombination, servers: tuple[Server, Server], load: ClientLoad, place: Place
) -> ServedPair:
    """Run one pair. Raises Unavailable when a server does not answer as it should."""
    task = {"load": asdict(load), "servers": [server.to_json() for server in servers]}
    argv = [*place.wrap, sys.executable, "-m", "benchmarks.served_pair", json.dumps(task), str(place.threads)]
    found = last_json(argv)
    ours, theirs = (Served(**figures) for figures in found["served"])
    shares = dict(zip(("homenode", combination.engine), found["others"], strict=True))
    return ServedPair(combination, ours, theirs, disturbed(shares), found["readings"])


def run_in_turns(
    record: ServedComparison, wanted: Sequence[ServedCombination], pairs: int, place: Place, out: Path
) -> None:
    """Measure all combinations; the file is written after every pair. Every pair has prompts of its own."""

    def measure(combination: ServedCombination) -> str:
        seed = 1 + sum(pair.combination == combination for pair in record.pairs)
        requests, prompt, gen = (record.load[name] for name in ("requests", "prompt_tokens", "gen_tokens"))
        load = ClientLoad(combination.clients, requests, prompt, gen, _VOCABULARY, seed=seed)
        servers = place.servers(combination, load)
        record.commands.update({server.name: without_folders(server.command.shown()) for server in servers})
        pair = measured(combination, servers, load, place)
        record.pairs.append(pair)
        record.save(out)
        return pair.discarded or f"{pair.ours.output_tok_s / pair.theirs.output_tok_s:.2f}x"

    def give_up(combination: ServedCombination, reason: str) -> None:
        record.skipped.append(without_folders(f"{combination.name}: {reason}"))
        record.save(out)

    Turns(lambda combination: combination.name, measure, lambda c: len(record.counted(c)), give_up).run(wanted, pairs)


@click.command()
@click.option(
    "--llama.cpp",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Its programs.",
)
@click.option(
    "--models",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="Folder of <shape>-<type>.gguf.",
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The JSON file.")
@click.option("--shape", default="qwen2.5-0.5b", show_default=True)
@click.option("--format", "formats", type=Names(), default="Q8_0,Q4_K_M", show_default=True)
@click.option(
    "--variant", "variants", type=click.Choice(("default", HUGE_PAGES)), multiple=True, default=("default", HUGE_PAGES)
)
@click.option("--clients", type=Numbers(), default="8,32", show_default=True)
@click.option("--requests", type=click.IntRange(1), default=2, show_default=True, help="Requests of each client.")
@click.option("--prompt-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option("--gen-tokens", type=click.IntRange(2), default=128, show_default=True)
@click.option("--pairs", type=click.IntRange(1), default=3, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--wrap", default="", help="A command to put before every pair, such as `taskset -c 2,3`.")
@click.option("--add", is_flag=True, help="Keep what the file holds of other combinations.")
def main(
    folder: Path,
    models: Path,
    out: Path,
    shape: str,
    formats: tuple[str, ...],
    variants: tuple[str, ...],
    clients: tuple[int, ...],
    requests: int,
    prompt_tokens: int,
    gen_tokens: int,
    pairs: int,
    threads: int,
    wrap: str,
    add: bool,
) -> None:
    """Measure both servers in turns."""
    folder, models = folder.absolute(), models.absolute()
    record = ServedComparison(
        machine(), {}, {"requests": requests, "prompt_tokens": prompt_tokens, "gen_tokens": gen_tokens}
    )
    if add and out.exists():
        found = ServedComparison.load_file(out)
        if found.load != record.load:
            raise click.UsageError(f"{out} was measured with other requests or tokens: {found.load}")
        record = found
    record.versions |= {"homenode": own_version(), "llama-server": _version(folder)}
    wanted = [ServedCombination(shape, f, n, "llama-server", v) for f in formats for n in clients for v in variants]
    record.forget(wanted)
    run_in_turns(record, wanted, pairs, Place(folder, models, threads, tuple(shlex.split(wrap))), out)


def _version(folder: Path) -> str:
    """What llama-server says of itself."""
    done = subprocess.run([str(folder / "llama-server"), "--version"], capture_output=True, text=True, check=False)
    said = (done.stdout + done.stderr).strip().splitlines()
    return next((line.removeprefix("version:").strip() for line in said if line.startswith("version")), "unknown")


if __name__ == "__main__":
    main()
