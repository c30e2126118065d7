"""Two servers on one machine at once, against each alone on half of its CPUs.

    python -m benchmarks.neighbours [MODEL] [--rounds 9] [--most-rounds 60] [--threads N] [--requests 4] [--clients 2]
        [--prompt-tokens 64] [--tokens 192] [--json FILE]

Four servers stand by, each with `--threads N` (half of the cores). Two were started one after the other as a user does,
so that they know of each other by their claims. The others may use one half of the cores each, all of their processes,
and know of nobody. A round asks, in an order that turns: both of the two at once; the third alone; the fourth alone;
the third and the fourth at once.
The load is the same for each. Of each round counts what both do at once, all their tokens until the later one is done,
in relation to the sum of the two that were alone: 1 is as much. Other programs would cost the two more than one that
is alone and leaves them the other half, so a round in which they had a tenth of a CPU's time or more, on the CPUs
of those that were asked, is measured again, `--most-rounds` in all; `elsewhere` is what they had on the other half
while one was alone, which can only slow that one down. Before and after, the CPUs of all threads are read back from the
kernel: the two have to be on cores of their own. Two servers lose something to each other wherever they are, on the
way to memory above all: so much is `by hand`, the third and the fourth at once, each bound to its half from outside.

On a machine that is not quiet `nice -n -20` helps, together with /proc/self/autogroup where the kernel groups tasks by
their session (sched(7)).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import httpx

from homenode.bench.runner import Interval, keep_record
from homenode.bench.serving.server_process import end_process
from homenode.cpuset import format_cpu_list
from homenode.host.bind.cpu_look import CpuLook
from homenode.host.topology.allowance import Allowance

_PATIENCE_S = 300.0
_OTHERS = 0.1  # CPUs' worth of time
_STOPPING_S = 10.0
_SHARES = {"share": "both at once", "share by hand": "two bound by hand at once"}


@dataclass(frozen=True)
class StandingServer:
    """A server that answers at `url`, and the first of its processes. Its clients stand by like the server: what making
    one takes is not measured, and threads that have ended could not be told from other programs."""

    name: str
    url: str
    process: Popen[bytes]
    client: httpx.Client
    pool: ThreadPoolExecutor

    def cpus(self) -> set[int]:
        """Where the threads of its front and its engine may run, as the kernel has it."""
        found: set[int] = set()
        for pid in _family(self.process.pid):
            with suppress(OSError):  # it has just ended
                for thread in Path(f"/proc/{pid}/task").iterdir():
                    found |= os.sched_getaffinity(int(thread.name))
        return found


@dataclass(frozen=True)
class Load:
    """What is asked of a server in a turn: `requests` of each of `clients`, one after the other."""

    clients: int
    requests: int
    prompt_tokens: int
    tokens: int

    def ask(self, server: StandingServer) -> float:
        """All of it; the seconds until the last answer."""
        begin = time.perf_counter()
        list(server.pool.map(lambda number: self._ask_as(server, number), range(self.clients)))
        return time.perf_counter() - begin

    @property
    def all_tokens(self) -> int:
        """Of a turn."""
        return self.clients * self.requests * self.tokens

    def _ask_as(self, server: StandingServer, number: int) -> None:
        for turn in range(self.requests):
            ids = [5 + (number * 31 + turn * 7 + at * 13) % 200 for at in range(self.prompt_tokens)]
            body = {"model": "m", "prompt": ids, "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True}
            answer = server.client.post(f"{server.url}/v1/completions", json=body)
            answer.raise_for_status()
            if answer.json()["usage"]["completion_tokens"] != self.tokens:
                raise RuntimeError(f"{server.name} answered with another number of tokens")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the rounds. The result is 1 where the two shared a core."""
    given = _parser().parse_args(arguments)
    cores = Allowance.of_process().physical_cpus
    half = len(cores) // 2
    if not half:
        raise SystemExit("two servers side by side need two cores")
    load = Load(given.clients, given.requests, given.prompt_tokens, given.tokens)
    flags = [*([given.model] if given.model else []), "--threads", str(given.threads or half)]
    with ExitStack() as stack:
        state = [stack.enter_context(tempfile.TemporaryDirectory()) for _ in range(3)]
        pair = [stack.enter_context(_serving(f"server {n + 1}", flags, state[0])) for n in range(2)]
        halves = (cores[:half], cores[half : 2 * half])
        alone = [
            stack.enter_context(_serving(f"CPUs {format_cpu_list(own)} alone", flags, state[n + 1], own))
            for n, own in enumerate(halves)
        ]
        for server in (*pair, *alone):
            load.ask(server)
        before = [server.cpus() for server in pair]
        at_once = stack.enter_context(ThreadPoolExecutor(2))
        rounds = _rounds(given, pair, alone, load, at_once)
        after = [server.cpus() for server in pair]
    if not rounds:
        raise SystemExit("other programs had a tenth of a CPU's time or more in every round")
    found: dict[str, Any] = {"load": vars(load), "rounds": rounds}
    found |= {"cpus": [format_cpu_list(sorted(each)) for each in after]}
    found |= {name: _spread([r[name] for r in rounds]) for name in _SHARES}
    _show(found)
    keep_record(given.json, **found)
    left_over = set(cores[2 * half :])  # where nobody computes
    return 1 if (before[0] & before[1] or after[0] & after[1]) - left_over else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbours", description=str(__doc__).split("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--most-rounds", type=int, default=60)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--requests", type=int, default=4)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--json", type=Path)
    return parser


def _rounds(
    given: argparse.Namespace,
    pair: Sequence[StandingServer],
    alone: Sequence[StandingServer],
    load: Load,
    at_once: ThreadPoolExecutor,
) -> list[dict[str, float]]:
    """Those that count."""
    counted: list[dict[str, float]] = []
    for number in range(given.most_rounds):
        seen = _round(number, pair, alone, load, at_once)
        counts = seen["others"] < _OTHERS
        counted += [seen] if counts else []
        told = "" if counts else f", not counted: others had {seen['others']:.2f} CPUs"
        print(f"round {number + 1}: {seen['share']:.3f}{told}", file=sys.stderr, flush=True)
        if len(counted) == given.rounds:
            break
    return counted


def _round(
    number: int,
    pair: Sequence[StandingServer],
    alone: Sequence[StandingServer],
    load: Load,
    at_once: ThreadPoolExecutor,
) -> dict[str, float]:
    """Tokens per second of the two that know of each other, at once (`both`); of the others at once (`by hand`), and of
    each of them while it is alone; and the CPUs' worth of time that others had there, and elsewhere, in the turn in
    which they had most."""
    seen: dict[str, float] = {"others": 0.0, "elsewhere": 0.0}
    everywhere = set().union(*(server.cpus() for server in (*pair, *alone)))
    own = (os.getpid(), *(pid for server in (*pair, *alone) for pid in _family(server.process.pid)))

    def together(name: str, servers: Sequence[StandingServer]) -> None:
        seen[name] = 2 * load.all_tokens / max(at_once.map(load.ask, servers))

    def one(server: StandingServer) -> None:
        seen[server.name] = load.all_tokens / load.ask(server)

    turns: list[tuple[Callable[[], None], set[int]]] = [
        (partial(together, "both", pair), everywhere),
        *((partial(one, server), server.cpus()) for server in alone),
        (partial(together, "by hand", alone), everywhere),
    ]
    for turn, cpus in turns[number % len(turns) :] + turns[: number % len(turns)]:
        look = CpuLook(own)
        turn()
        had = look.finish()
        for name, where in (("others", cpus), ("elsewhere", everywhere - cpus)):
            seen[name] = max(seen[name], sum(had.get(cpu, 0.0) for cpu in where))
    sum_alone = sum(seen[server.name] for server in alone)
    seen |= {"share": seen["both"] / sum_alone, "share by hand": seen["by hand"] / sum_alone}
    return {name: round(value, 4) for name, value in seen.items()}


@contextmanager
def _serving(name: str, flags: Sequence[str], state: str, cpus: Sequence[int] = ()) -> Iterator[StandingServer]:
    """`cpus`: all that its processes may use; empty: as this process."""
    words = [sys.executable, "-m", "homenode.cli.main", "serve", *flags, "--port", "0", "--served-model-name", "m"]
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)  # which the server inherits
    try:
        process = Popen(words, stderr=PIPE, env={**os.environ, "HOMENODE_STATE_DIR": state})
    finally:
        os.sched_setaffinity(0, before)
    try:
        with httpx.Client(timeout=_PATIENCE_S) as client, ThreadPoolExecutor() as pool:
            yield StandingServer(name, _url(process), process, client, pool)
    finally:
        end_process(process, _STOPPING_S)


def _url(process: Popen[bytes]) -> str:
    """Where it listens, from its log; what it says later is let go."""
    assert process.stderr is not None
    for line in process.stderr:
        if b" ready http://" in line:
            drain = ThreadPoolExecutor(1)
            drain.submit(process.stderr.read)
            drain.shutdown(wait=False)
            return line.decode().partition(" ready ")[2].split()[0]
    raise RuntimeError("the server ended before it was ready")


def _family(pid: int) -> Iterator[int]:
    """The process and all that it has started, as long as they live; without those that render templates, of which
    this load has none."""
    with suppress(OSError):
        if b"sandbox" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {**Interval.of(values).to_json(), "least": min(values), "most": max(values)}


def _show(found: dict[str, Any]) -> None:
    names = [name for name in found["rounds"][0] if name not in (*_SHARES, "others", "elsewhere")]
    for name in sorted(names):
        print(f"{name:20} {statistics.median(r[name] for r in found['rounds']):9.1f} tok/s")
    for name, meaning in _SHARES.items():
        share = found[name]
        print(f"{meaning}, of the sum: {share['median']:.3f} ({share['low']:.3f} to {share['high']:.3f})")
    print(f"server 1 on CPUs {found['cpus'][0]}, server 2 on CPUs {found['cpus'][1]}")


if __name__ == "__main__":
    sys.exit(main())
