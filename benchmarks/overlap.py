"""What a pipeline's micro-batches gain, and whether an engine with one stage pays for there being others.

    python -m benchmarks.overlap --model M.gguf [--before TREE] [--json FILE]

Real engines, all loaded at once, decode in turns (A B A B ...), so that whatever changes on the machine meanwhile
changes for all of them:

- two CPU stages of one thread each, fed as the scheduler means to, against the same in lock step (at most one step in
  flight);
- with --before, the engine of one stage of this tree against that of another (a checkout with its native core built in
  `src/homenode`).

Of each the median counts, and of each pair of turns the ratio. Pairs beside which other programs used the CPUs
(`benchmarks.others`) do not count, and others are measured in their place, up to three times as many and while
--seconds last; if no pair is left, all of them are shown, and that it is so.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.others import disturbed, used_seconds
from homenode.bench.runner import Interval, keep_record

_ROOT = Path(__file__).resolve().parent.parent
_PROGRAM = _ROOT / "benchmarks" / "programs" / "decode_turns.py"
_KV_BYTES, _LONGEST = 512 << 20, 4096


@dataclass(frozen=True)
class Work:
    """What is decoded in a turn: so many requests at once, with prompts of so many tokens, and so many tokens each."""

    requests: int
    prompt: int
    tokens: int


@dataclass
class Side:
    """An engine in a process of its own, of the source tree `tree`."""

    name: str
    model: Path
    settings: dict[str, Any]
    build: dict[str, Any] = field(default_factory=dict)
    tree: Path = _ROOT
    _process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Load. RuntimeError when it ends instead."""
        given = {
            "settings": {
                "model": str(self.model),
                "kv_cache_memory": _KV_BYTES,
                "max_model_len": _LONGEST,
                **self.settings,
            },
            "build": self.build,
        }
        argv = [sys.executable, str(_PROGRAM), json.dumps(given)]
        variables = {**os.environ, "PYTHONPATH": str(self.tree / "src")}
        self._process = subprocess.Popen(argv, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self._answer()

    def turn(self, work: Work) -> dict[str, Any]:
        """Decode once; `others` in the answer is the share of the CPUs that anything else used. RuntimeError when the
        engine failed."""
        assert self._process is not None and self._process.stdin is not None
        cpus = os.sched_getaffinity(0)
        begin, others = time.monotonic(), self._of_others(cpus)
        self._process.stdin.write(f"{work.requests} {work.prompt} {work.tokens}\n")
        self._process.stdin.flush()
        answer = self._answer()
        share = (self._of_others(cpus) - others) / (len(cpus) * (time.monotonic() - begin))
        return {**answer, "others": max(0.0, share)}

    def end(self) -> None:
        """No further turns."""
        if self._process is not None:
            self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: the engine ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _of_others(self, cpus: set[int]) -> float:
        assert self._process is not None
        return used_seconds(Path("/proc/stat").read_text(encoding="ascii"), cpus) - tree_seconds(self._process.pid)


def tree_seconds(pid: int) -> float:
    """CPU time of a process and of what it has started and still runs."""
    folder = Path(f"/proc/{pid}")
    fields = (folder / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    children = [
        child
        for task in (folder / "task").iterdir()
        for child in (task / "children").read_text(encoding="ascii").split()
    ]
    return seconds + sum(tree_seconds(int(child)) for child in children)


def compare(sides: tuple[Side, Side], work: Work, turns: int, seconds: float) -> dict[str, Any]:
    """Medians of both, and of the ratios of the first to the second in each pair of turns, which begin with either in
    turn."""
    pairs: list[list[dict[str, Any]]] = []
    thrown: list[list[dict[str, Any]]] = []
    ends = time.monotonic() + seconds
    while len(pairs) < turns and len(thrown) < 2 * turns and not (pairs + thrown and time.monotonic() > ends):
        order = sides if (len(pairs) + len(thrown)) % 2 == 0 else sides[::-1]
        found = {side.name: side.turn(work) for side in order}
        beside = disturbed({name: one["others"] for name, one in found.items()})
        (thrown if beside else pairs).append([found[side.name] for side in sides])
    counted = pairs or thrown
    ratios = [first["rate"] / second["rate"] for first, second in counted]
    return {
        **asdict(work),
        "quiet": bool(pairs),
        "disturbed": len(thrown),
        "turns": {side.name: [pair[at] for pair in counted] for at, side in enumerate(sides)},
        "medians": {
            side.name: statistics.median(pair[at]["rate"] for pair in counted) for at, side in enumerate(sides)
        },
        "best": {side.name: max(pair[at]["rate"] for pair in counted) for at, side in enumerate(sides)},
        "ratio": Interval.of(ratios).to_json(),
        "ratios": ratios,
        "stages": {side.name: counted[-1][at]["stages"] for at, side in enumerate(sides)},
    }


def report(found: dict[str, Any]) -> str:
    """In a few lines."""
    rates = ", ".join(f"{name} {rate:.1f}" for name, rate in found["medians"].items())
    counted = f"{len(found['ratios'])} pairs" + ("" if found["quiet"] else ", all beside other programs")
    best = ", ".join(f"{rate:.1f}" for rate in found["best"].values())
    lines = [
        f"decode, {found['requests']} after {found['prompt']} tokens: {rates} tok/s (best {best}); ratio "
        f"{Interval(**found['ratio'])}; {counted}"
    ]
    for name, stages in found["stages"].items():
        lines += [
            f"    {name}, stage {stage}: computes {busy:.1%} of the time, waits {wait:.1%}"
            for stage, (busy, wait) in stages.items()
        ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print; with --json keep it as well."""
    parser = argparse.ArgumentParser(description="Measure what micro-batches gain.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument(
        "--before", type=Path, help="A source tree whose engine of one stage is compared with this one's."
    )
    parser.add_argument("--layer-split", default="auto", help="Layers of the two stages.")
    parser.add_argument("--micro-batches", type=int, default=0, help="Of the pipeline; 0: as the scheduler means to.")
    parser.add_argument("--requests", type=int, default=8, help="That decode at once.")
    parser.add_argument("--prompt", type=int, default=16, help="Tokens of each request's prompt.")
    parser.add_argument("--tokens", type=int, default=48, help="Of each request in a turn.")
    parser.add_argument("--turns", type=int, default=5, help="Of each side.")
    parser.add_argument("--seconds", type=float, default=300.0, help="After which no further pair of turns begins.")
    parser.add_argument("--only-one-stage", action="store_true", help="Leave the pipeline out.")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    two = {"pipeline_parallel_size": 2, "stage_devices": "cpu,cpu", "layer_split": asked.layer_split}
    groups = []
    if not asked.only_one_stage:
        pipeline = Side("micro-batches", asked.model, two, {"micro_batches": asked.micro_batches})
        groups.append(
            (
                (pipeline, Side("lock step", asked.model, two, {"micro_batches": 1})),
                [Work(asked.requests, asked.prompt, asked.tokens)],
            )
        )
    if asked.before:
        now, before = Side("this tree", asked.model, {}), Side("before", asked.model, {}, tree=asked.before.resolve())
        groups.append(((now, before), [Work(requests, asked.prompt, asked.tokens) for requests in (1, asked.requests)]))
    keep_record(asked.json, model=asked.model.name, found=measured(groups, asked.turns, asked.seconds))


def measured(groups: list[tuple[tuple[Side, Side], list[Work]]], turns: int, seconds: float) -> list[dict[str, Any]]:
    """Of each pair of sides and work what `compare` gives; it is printed, too."""
    found = []
    for sides, works in groups:
        try:
            for side in sides:
                side.start()
                side.turn(replace(works[-1], tokens=16))  # not counted
            for work in works:
                found.append(compare(sides, work, turns, seconds))
                print(report(found[-1]), flush=True)
        finally:
            for side in sides:
                side.end()
    return found


if __name__ == "__main__":
    main()
