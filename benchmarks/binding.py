"""Jitter, context switches and tail latency of bound and of unbound compute threads beside busy neighbours:
`python -m benchmarks.binding MODEL --out FILE`.

Two servers run at once with the same threads, one bound by its plan and one with `--cpu-threads-bind nobind`, and are
asked in turns, one stream at a time, so that each has the machine to itself but for the neighbours: programs that
compute all the time and may run on every CPU. No tokens are drafted, so each step brings one, and every gap between two
is kept. Of the threads that computed, the
kernel tells how often they were taken off their CPU (involuntary switches) and, by the CPU they were last on, how often
they were found on another one.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np

from benchmarks.contender import Command
from benchmarks.servers import Server, free_port, running
from homenode.bench.runner import in_turns, keep_record
from homenode.bench.serving.clients import ClientLoad, run_load
from homenode.cli.benchmarks.options import Numbers

SIDES = {"bound": (), "unbound": ("--cpu-threads-bind", "nobind")}
_PROC = Path("/proc")
_LOOK_EVERY_S = 0.05
_COMPUTED = 0.25  # a thread computed if it has this share of the CPU time of the one that has most
_LAST_CPU = 36  # the field `processor` of /proc/PID/stat, counted from the one behind the name


@dataclass(frozen=True)
class Turn:
    """One answer of one side. `gaps`: seconds between tokens; `first`: to the first one. `switched`: involuntary
    switches of compute threads a second; `moved`: of looks at them, the share that found one on another CPU than the
    look before."""

    neighbours: int
    side: str
    first: float
    gaps: tuple[float, ...]
    switched: float
    moved: float


def _compute() -> None:
    while True:
        sum(range(10_000))


@contextmanager
def _busy(count: int) -> Iterator[None]:
    """So many neighbours."""
    programs = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(count)]
    for program in programs:
        program.start()
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.join()


def _family(pid: int) -> list[int]:
    """A process and all that it has started."""
    children = []
    for entry in (_PROC / str(pid) / "task").iterdir():
        with suppress(OSError):
            children += [int(child) for child in (entry / "children").read_text().split()]
    return [pid, *(below for child in children for below in _family(child))]


def _threads(pid: int) -> dict[str, tuple[int, int, int]]:
    """CPU ticks, involuntary switches and last CPU of every thread of a server, by its folder in /proc."""
    found = {}
    for process in _family(pid):
        with suppress(OSError):
            for task in (_PROC / str(process) / "task").iterdir():
                with suppress(OSError):
                    stat = (task / "stat").read_text().rpartition(")")[2].split()
                    status = (task / "status").read_text()
                    switches = next(line for line in status.splitlines() if line.startswith("nonvoluntary"))
                    found[str(task)] = (int(stat[11]) + int(stat[12]), int(switches.split()[1]), int(stat[_LAST_CPU]))
    return found


async def _answer(server: Server, pid: int, load: ClientLoad) -> tuple[float, tuple[float, ...], float, float]:
    """First token, gaps, switches a second and the share of looks that found a thread moved."""
    before, looks = _threads(pid), []
    asked = asyncio.create_task(run_load(f"http://127.0.0.1:{server.port}", load))
    while not (await asyncio.wait({asked}, timeout=_LOOK_EVERY_S))[0]:
        looks.append(_threads(pid))
    [exchange] = await asked
    after = _threads(pid)
    spent = {task: ticks - before.get(task, (0, 0, 0))[0] for task, (ticks, _, _) in after.items()}
    computed = [task for task, ticks in spent.items() if ticks >= _COMPUTED * max(spent.values())]
    switches = sum(after[task][1] - before.get(task, (0, 0, 0))[1] for task in computed)
    pairs = [
        (earlier[task][2], later[task][2])
        for earlier, later in itertools.pairwise(looks)
        for task in computed
        if task in earlier and task in later
    ]
    events = exchange.events
    gaps = tuple(later - earlier for earlier, later in itertools.pairwise(events))
    seconds = exchange.ended_at - exchange.started_at
    moved = statistics.fmean(one != other for one, other in pairs) if pairs else 0.0
    return events[0] - exchange.started_at, gaps, switches / seconds, moved


def measure(model: Path, neighbours: Sequence[int], turns: int, threads: int, tokens: int) -> list[Turn]:
    """All turns; which side begins changes from turn to turn."""
    found = []
    common = (str(model), "--threads", str(threads), "--kv-cache-memory", "256MiB", "--speculative", "off")
    with ExitStack() as stack:
        servers, pids = {}, {}
        for side, words in SIDES.items():
            port = free_port()
            argv = (sys.executable, "-m", "homenode.cli.main", "serve", *common, *words, "--port", str(port))
            servers[side] = Server("homenode", side, Command(argv), port)
            pids[side] = stack.enter_context(running(servers[side]))
        for count in neighbours:
            with _busy(count):
                for turn, order in in_turns(sorted(SIDES), turns):
                    for side in order:
                        load = ClientLoad(1, 1, 32, tokens, seed=1000 * turn + count)
                        answer = asyncio.run(_answer(servers[side], pids[side], load))
                        found.append(Turn(count, side, *answer))
    return found


def lines_of(found: Sequence[Turn]) -> Iterator[str]:
    """A line for each side beside each number of neighbours."""
    for count in dict.fromkeys(turn.neighbours for turn in found):
        for side in SIDES:
            own = [turn for turn in found if (turn.neighbours, turn.side) == (count, side)]
            gaps = np.array([gap for turn in own for gap in turn.gaps]) * 1000
            median, p99 = np.percentile(gaps, (50, 99))
            yield (
                f"{count} busy neighbours, {side}: between tokens median {median:.2f} ms, p99 {p99:.2f} ms, longest "
                f"{gaps.max():.2f} ms, deviation {gaps.std():.2f} ms; first token "
                f"{statistics.median(turn.first for turn in own) * 1000:.1f} ms; "
                f"{statistics.median(turn.switched for turn in own):.1f} involuntary switches a second; "
                f"{statistics.fmean(turn.moved for turn in own):.1%} of looks found a thread moved"
            )


@click.command()
@click.argument("model", type=click.Path(path_type=Path, exists=True))
@click.option("--neighbours", type=Numbers(), default="1", show_default=True, help="Busy programs beside the servers.")
@click.option("--turns", type=click.IntRange(1), default=10, show_default=True)
@click.option("--threads", type=click.IntRange(1), default=max(1, (os.cpu_count() or 2) // 2), show_default=True)
@click.option("--tokens", type=click.IntRange(2), default=128, show_default=True, help="Of each answer.")
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The JSON file.")
def main(model: Path, neighbours: tuple[int, ...], turns: int, threads: int, tokens: int, out: Path) -> None:
    """Measure both sides, without neighbours and beside as many as are given."""
    found = measure(model, (0, *neighbours), turns, threads, tokens)
    keep_record(out, model=model.name, threads=threads, turns=[asdict(turn) for turn in found])
    for line in lines_of(found):
        click.echo(line)


if __name__ == "__main__":
    main()
