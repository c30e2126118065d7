"""Served load and KV hand-over of one installation of homenode against another: pairs in turns on the same CPUs.

    python -m benchmarks.commits_served OLD NEW MODEL [--rounds 3] [--pairs 15] [--clients 8] [--requests 2]
        [--prompt-tokens 256]
                                        [--gen-tokens 64] [--threads N] [--handover] [--json FILE]

OLD and NEW are `homenode` programs, each in its own virtual environment. In each round a server of each is started and
then asked in turns (A B B A ...), so many pairs; with `--handover` a side is a prefill server, a decode server and a
proxy, through which its clients ask. For each figure the ratio is taken pair by pair so that above 1 the new one is
faster, and printed are the median over all rounds and its 95 % interval. One client with many pairs of short answers
shows decode, one with `--gen-tokens 1` prefill, each with less noise than whole runs of a program: what a start and the
place of its memory add is the same for all pairs of a round. The exit code is 1 when the lower end of the interval of
the output rate, or of the time to the first token, is below 0.97.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.commits import programs_of
from benchmarks.contender import Command
from benchmarks.servers import Server, free_port, running
from homenode.bench.runner import Interval, in_turns, keep_record
from homenode.bench.serving.clients import ClientLoad, run_load
from homenode.bench.serving.served import Served, served

_LEAST = 0.97
_JUDGED = ("output rate", "first token")


def _server(program: str, verb: str, *arguments: str) -> Server:
    port = free_port()
    return Server(program, verb, Command((program, verb, *arguments, "--port", str(port))), port)


@contextmanager
def side(program: str, given: argparse.Namespace) -> Iterator[str]:
    """The URL to ask of a running side."""
    common = [str(given.model), "--kv-cache-memory", "512MiB"]
    common += [] if given.threads is None else ["--threads", str(given.threads)]
    with ExitStack() as stack:
        if not given.handover:
            asked = _server(program, "serve", *common)
        else:
            transfer = ("--transfer-channel", "shm", "--pd-buffer-size", "256MiB")
            parts = [
                _server(program, "serve", *common, "--pd-role", role, *transfer) for role in ("sender", "receiver")
            ]
            for part in parts:
                stack.enter_context(running(part))
            prefill, decode = (f"http://127.0.0.1:{part.port}" for part in parts)
            asked = _server(program, "proxy", "--prefill", prefill, "--decode", decode)
        stack.enter_context(running(asked))
        yield f"http://127.0.0.1:{asked.port}"


def ask(url: str, load: ClientLoad) -> Served:
    """What the clients of one turn saw."""
    return served(load.clients, load.prompt_tokens, asyncio.run(run_load(url, load)))


def ratios(old: Served, new: Served) -> dict[str, float]:
    """Of one pair, above 1 where the new one is faster."""
    found = {
        "output rate": new.output_tok_s / old.output_tok_s,
        "first token": old.ttft_median_s / new.ttft_median_s,
        "time of a token": old.tpot_median_s / new.tpot_median_s,
    }
    return {name: ratio for name, ratio in found.items() if not math.isnan(ratio)}  # answers of one token have no gaps


def compare(given: argparse.Namespace, number: int) -> list[dict[str, float]]:
    """The ratios of one round."""
    found = []
    with side(given.old, given) as old, side(given.new, given) as new:
        for pair, order in in_turns((new, old), given.pairs + 1):  # the first pair warms both up
            seed = number * (given.pairs + 1) + pair
            load = ClientLoad(given.clients, given.requests, given.prompt_tokens, given.gen_tokens, seed=seed)
            seen = {url: ask(url, load) for url in order}
            if pair:
                found.append(ratios(seen[old], seen[new]))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.commits_served", description=str(__doc__).split("\n")[0]
    )
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("model", type=Path)
    for flag, default in (
        ("rounds", 3),
        ("pairs", 15),
        ("clients", 8),
        ("requests", 2),
        ("prompt-tokens", 256),
        ("gen-tokens", 64),
    ):
        parser.add_argument(f"--{flag}", type=int, default=default)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--handover", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    found: list[dict[str, float]] = []
    for number in range(given.rounds):
        found += compare(given, number)
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
    summary = {name: Interval.of([pair[name] for pair in found]) for name in found[0]}
    for name, interval in summary.items():
        print(f"{given.model.name}, {name}: new by old {interval}")
    keep_record(given.json, programs_of(given), handover=given.handover, pairs=found)
    return int(any(summary[name].low < _LEAST for name in _JUDGED))


if __name__ == "__main__":
    sys.exit(main())
