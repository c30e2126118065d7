"""Speed of one installation of homenode against another, such as that of the commit before: pairs in turns on the same
CPUs.

    python -m benchmarks.commits OLD NEW MODEL [MODEL ...] [--pairs 15] [--batch 1,8] [--prompt-tokens 512]
        [--gen-tokens 64]
                                 [--threads N] [--cpus LIST] [--json FILE]

OLD and NEW are `homenode` programs, each in its own virtual environment. For each model both run `homenode bench model`
in turns (A B B A ...), so that whatever changes on the machine meanwhile changes for both. For each test the ratio of
new to old is taken pair by pair, of three figures: tokens per second by the clock, of the quickest step, and per second
of CPU time. The quickest step is hardly reached by what other programs take of the machine. Above 1 the new one is
faster. Printed are the median ratio and its 95 % interval (order statistics); the exit code is 1 when the lower end of
an interval by the clock is below 0.97 while that of the quickest step is, too.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from homenode.bench.runner import Interval, in_turns, keep_record

_FIGURES = ("tok_s", "best_step_tok_s", "tok_cpu_s")
_LEAST = 0.97
_RUN_S = 1200.0


def figures(program: str, model: str, given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """What `homenode bench model` of this program finds: the figures of each test, by its name. RuntimeError when it
    fails."""
    command = [program, "bench", "model", model, "--json", "--repeat", "1", "--batch", given.batch]
    command += ["--prompt-tokens", str(given.prompt_tokens), "--gen-tokens", str(given.gen_tokens)]
    if given.threads is not None:
        command += ["--threads", str(given.threads)]
    if given.cpus is not None:
        command = ["taskset", "-c", given.cpus, *command]
    ran = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_RUN_S)
    if ran.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} ended with {ran.returncode}: {ran.stderr[-500:]}")
    return {_name(test): _figures_of(test) for test in json.loads(ran.stdout)["results"]}


def _name(test: dict[str, Any]) -> str:
    return f"{test['test']} of {test['tokens']}" if test["test"] == "prefill" else f"{test['test']} {test['batch']}"


def _figures_of(test: dict[str, Any]) -> dict[str, float]:
    tokens = test["tokens"] * test["batch"]
    return {
        "tok_s": test["tok_s"],
        "best_step_tok_s": test["best_step_tok_s"],
        "tok_cpu_s": tokens / test["cpu_seconds"] if test["cpu_seconds"] else math.nan,
    }


def compare(model: str, given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The ratios of one model, by test and figure."""
    ratios: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    speeds: dict[str, list[float]] = defaultdict(list)
    for number, order in in_turns(("old", "new"), given.pairs):
        seen = {side: figures(getattr(given, side), model, given) for side in order}
        for test, new in seen["new"].items():
            speeds[test].append(new["tok_s"])
            for figure in _FIGURES:
                ratios[test][figure].append(new[figure] / seen["old"][test][figure])
        print(f"{Path(model).name}: pair {number + 1} of {given.pairs}", file=sys.stderr, flush=True)
    return {
        test: {
            "speed": statistics.median(speeds[test]),
            **{figure: Interval.of(values) for figure, values in by.items()},
        }
        for test, by in ratios.items()
    }


def _plain(by: dict[str, Any]) -> dict[str, Any]:
    return {name: value.to_json() if isinstance(value, Interval) else value for name, value in by.items()}


def programs_of(given: argparse.Namespace) -> dict[str, str]:
    """The versions of both sides, as their programs tell them."""
    told = {
        side: subprocess.run([getattr(given, side), "--version"], capture_output=True, text=True, check=False)
        for side in ("old", "new")
    }
    return {side: done.stdout.strip() for side, done in told.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each test and figure."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.commits", description=str(__doc__).split("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--batch", default="1,8")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--gen-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpus")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    found = {model: compare(model, given) for model in given.models}
    slower = False
    for model, tests in found.items():
        for test, by in tests.items():
            words = ", ".join(f"{figure} {by[figure]}" for figure in _FIGURES)
            print(f"{Path(model).name}, {test}: {by['speed']:.1f} tok/s; new by old: {words}")
            slower |= all(by[figure].low < _LEAST for figure in ("tok_s", "best_step_tok_s"))
    results = {model: {test: _plain(by) for test, by in tests.items()} for model, tests in found.items()}
    keep_record(given.json, programs_of(given), pairs=given.pairs, results=results)
    return int(slower)


if __name__ == "__main__":
    sys.exit(main())
