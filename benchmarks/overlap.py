"""What a pipeline's micro-batches gain, and whether an engine with one stage pays for there being others.

    python -m benchmarks.overlap --model M.gguf [--before TREE] [--json FILE]

Real engines, all loaded at once, decode in turns (A B A B ...), so that whatever changes on the machine meanwhile changes for all of them:

- two CPU stages of one thread each, fed as the scheduler means to, against the same in lock step (at most one step in flight);
- with --before, the engine of one stage of this tree against that of another (a checkout with its native core built in `src/homenode`).

Of each the median counts, and of each pair of turns the ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import machine, own_version

_ROOT = Path(__file__).resolve().parent.parent
_PROGRAM = _ROOT / "benchmarks" / "programs" / "decode_turns.py"
_KV_BYTES, _LONGEST = 256 << 20, 1024


@dataclass
class Side:
    """An engine in a process of its own, of the source tree `tree`."""

    name: str
    model: Path
    settings: dict[str, Any]
    build: dict[str, Any] = field(default_factory=dict)
    tree: Path = _ROOT

    def start(self) -> None:
        """Load. RuntimeError when it ends instead."""
        given = {"settings": {"model": str(self.model), "kv_cache_memory": _KV_BYTES, "max_model_len": _LONGEST, **self.settings}, "build": self.build}
        argv = [sys.executable, str(_PROGRAM), json.dumps(given)]
        variables = {**os.environ, "PYTHONPATH": str(self.tree / "src")}
        self._process = subprocess.Popen(argv, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = self._answer()

    def turn(self, batch: int, tokens: int) -> dict[str, Any]:
        """Decode once. RuntimeError when the engine failed."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{batch} {tokens}\n")
        self._process.stdin.flush()
        return self._answer()

    def end(self) -> None:
        """No further turns."""
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name}: the engine ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def compare(sides: tuple[Side, Side], batch: int, tokens: int, turns: int) -> dict[str, Any]:
    """Medians of both, and of the ratios of the first to the second in each pair of turns, which begin with either in turn."""
    pairs = []
    for number in range(turns):
        order = sides if number % 2 == 0 else sides[::-1]
        found = {side.name: side.turn(batch, tokens) for side in order}
        pairs.append([found[side.name] for side in sides])
    rates = [[pair[at]["rate"] for pair in pairs] for at in (0, 1)]
    ratios = [pair[0]["rate"] / pair[1]["rate"] for pair in pairs]
    return {
        "batch": batch,
        "tokens": tokens,
        "rates": {side.name: rates[at] for at, side in enumerate(sides)},
        "medians": {side.name: statistics.median(rates[at]) for at, side in enumerate(sides)},
        "ratio": statistics.median(ratios),
        "ratios": [min(ratios), max(ratios)],
        "stages": {side.name: pairs[-1][at]["stages"] for at, side in enumerate(sides)},
    }


def report(found: dict[str, Any]) -> str:
    """In a few lines."""
    rates = ", ".join(f"{name} {rate:.1f}" for name, rate in found["medians"].items())
    low, high = found["ratios"]
    lines = [f"decode, {found['batch']} at once: {rates} tok/s; ratio {found['ratio']:.3f} ({low:.3f} to {high:.3f})"]
    for name, stages in found["stages"].items():
        lines += [f"    {name}, stage {stage}: computes {busy:.1%} of the time, waits {wait:.1%}" for stage, (busy, wait) in stages.items()]
    return "\n".join(lines)


def main() -> None:
    """Measure and print; with --json keep it as well."""
    parser = argparse.ArgumentParser(description="Measure what micro-batches gain.")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--before", type=Path, help="A source tree whose engine of one stage is compared with this one's.")
    parser.add_argument("--layer-split", default="auto", help="Layers of the two stages.")
    parser.add_argument("--micro-batches", type=int, default=0, help="Of the pipeline; 0: as the scheduler means to.")
    parser.add_argument("--requests", type=int, default=8, help="That decode at once.")
    parser.add_argument("--tokens", type=int, default=48, help="Of each request in a turn.")
    parser.add_argument("--turns", type=int, default=5, help="Of each side.")
    parser.add_argument("--only-one-stage", action="store_true", help="Leave the pipeline out.")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    two = {"pipeline_parallel_size": 2, "stage_devices": "cpu,cpu", "layer_split": asked.layer_split}
    groups = []
    if not asked.only_one_stage:
        pipeline = Side("micro-batches", asked.model, two, {"micro_batches": asked.micro_batches})
        groups.append(((pipeline, Side("lock step", asked.model, two, {"micro_batches": 1})), [asked.requests]))
    if asked.before:
        now, before = Side("this tree", asked.model, {}), Side("before", asked.model, {}, tree=asked.before.resolve())
        groups.append(((now, before), [1, asked.requests]))
    result = {"machine": machine(), "version": own_version(), "model": asked.model.name, "found": measured(groups, asked.tokens, asked.turns)}
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def measured(groups: list[tuple[tuple[Side, Side], list[int]]], tokens: int, turns: int) -> list[dict[str, Any]]:
    """Of each pair of sides and number of requests what `compare` gives; it is printed, too."""
    found = []
    for sides, batches in groups:
        for side in sides:
            side.start()
        for side in sides:
            side.turn(max(batches), 16)  # not counted
        for batch in batches:
            found.append(compare(sides, batch, tokens, turns))
            print(report(found[-1]), flush=True)
        for side in sides:
            side.end()
    return found


if __name__ == "__main__":
    main()
