"""Measure homenode under every --numa policy on a machine with several NUMA nodes, and gather all of it in one JSON
file to send back.

    python tools/measure_numa.py --model MODEL --out numa.json [--policies shard,mirror,local] [--rounds 3] [--batch
    1,8] [...]

It records the machine without anything private, measures its nodes, asks for the layout and the prediction of each
policy, and then lets the policies take turns, several rounds over, so that what changes with time (clock rates, other
programs) changes for all of them. The file is written anew after every run: what is there when it is interrupted is
kept. On a machine with one node it runs too, and says that every policy is local.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from homenode import __version__

FORMAT = "homenode-numa-runs/1"
POLICIES = ("local", "interleave", "shard", "mirror", "replicate", "auto")
_LONGEST_RUN_S = 3600
_LAST_OF_ERROR = 600  # characters


@dataclass(frozen=True, slots=True)
class Wishes:
    """What to measure. command: how homenode is called. bench: further arguments of `homenode bench model`."""

    command: tuple[str, ...]
    model: str | None
    policies: tuple[str, ...]
    rounds: int
    bench: tuple[str, ...]


@dataclass(slots=True)
class Record:
    """Everything that was found; `to_json` is the file."""

    wishes: Wishes
    host: dict[str, Any] = field(default_factory=dict)
    nodes: dict[str, Any] = field(default_factory=dict)
    plans: dict[str, Any] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The file. A model's folder is left out: it may hold a name."""
        model = self.wishes.model and Path(self.wishes.model).name
        return {
            "format": FORMAT,
            "homenode": __version__,
            "model": model,
            "arguments": list(self.wishes.bench),
            "host": self.host,
            "nodes": self.nodes,
            "plans": self.plans,
            "runs": self.runs,
            "summary": summary(self.runs),
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """0: something was measured; 1: no run succeeded; 2: the arguments are wrong."""
    args = _parser().parse_args(arguments)
    wishes = _wishes(args)
    out: Path = args.out
    if not os.access(out.parent, os.W_OK):
        print(f"--out {out}: no file can be made in {out.parent}", file=sys.stderr)
        return 2
    record = Record(wishes)
    with tempfile.TemporaryDirectory() as folder:
        prepare(record, Path(folder))
        _write(out, record)
        for number, policy in turns(wishes.policies, wishes.rounds):
            print(f"round {number + 1} of {wishes.rounds}: --numa {policy}", file=sys.stderr)
            record.runs.append({"round": number, "policy": policy, **run(record, policy, Path(folder))})
            _write(out, record)
    print(table(record.to_json()["summary"]))
    print(
        f"All figures are in {out}. Please send it back with an issue; nothing in it names this machine or its users."
    )
    return 0 if any("result" in one for one in record.runs) else 1


def turns(policies: Sequence[str], rounds: int) -> list[tuple[int, str]]:
    """Which policy runs when: every round has each once, and begins with another one, so that none is always the first
    after a pause.
    """
    order = [list(policies[at % len(policies) :]) + list(policies[: at % len(policies)]) for at in range(rounds)]
    return [(number, policy) for number, names in enumerate(order) for policy in names]


def prepare(record: Record, folder: Path) -> None:
    """The machine, its nodes, and what is planned and predicted for each policy. What cannot be had is told in its
    place.
    """
    recording, nodes = folder / "host.json", folder / "nodes.json"
    said = _call(record.wishes, ["host", "record", str(recording)])
    record.host = _kept(recording, said)
    print("measuring the nodes", file=sys.stderr)
    record.nodes = _kept(nodes, _call(record.wishes, ["bench", "nodes", "--out", str(nodes)]))
    for policy in record.wishes.policies:
        measured = ["--numa-measured", str(nodes)] if policy == "auto" and nodes.exists() else []
        answer = _call(
            record.wishes, ["plan", "--weights", *_model(record.wishes), "--numa", policy, *measured, "--json"]
        )
        plan = _last_json(answer)
        if isinstance(plan, dict):
            plan.pop("parameters", None)  # the rows of every matrix: long, and the same on every machine of this shape
        record.plans[policy] = plan if plan is not None else {"failed": _end(answer.stderr)}


def run(record: Record, policy: str, folder: Path) -> dict[str, Any]:
    """One run of `homenode bench model`: its seconds, and its result or why it failed."""
    wishes = record.wishes
    nodes = folder / "nodes.json"
    measured = ["--numa-measured", str(nodes)] if policy == "auto" and nodes.exists() else []
    begin = time.monotonic()
    answer = _call(wishes, ["bench", "model", *_model(wishes), "--numa", policy, *measured, *wishes.bench, "--json"])
    seconds = round(time.monotonic() - begin, 2)
    result = _last_json(answer)
    if answer.returncode or not isinstance(result, dict) or "results" not in result:
        return {"seconds": seconds, "failed": _end(answer.stderr or answer.stdout)}
    result["model"] = wishes.model and Path(wishes.model).name
    return {"seconds": seconds, "result": result}


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The median tokens a second of each policy and test over the rounds."""
    found: dict[str, dict[str, list[float]]] = {}
    for one in runs:
        for result in one.get("result", {}).get("results", ()):
            name = result["test"] if result["test"] == "prefill" else f"{result['test']}, batch {result['batch']}"
            found.setdefault(one["policy"], {}).setdefault(name, []).append(result["tok_s"])
    return {policy: {name: round(median(rates), 3) for name, rates in tests.items()} for policy, tests in found.items()}


def table(figures: Mapping[str, Mapping[str, float]]) -> str:
    """Lines to look at: tokens a second, and as a multiple of `local`."""
    tests = list(dict.fromkeys(name for rates in figures.values() for name in rates))
    if not tests:
        return "No run succeeded; the file says why."
    lines = [" ".join(["policy".ljust(12), *(name.rjust(22) for name in tests)])]
    for policy, rates in figures.items():
        cells = [_cell(rates.get(name), figures.get("local", {}).get(name)) for name in tests]
        lines.append(" ".join([policy.ljust(12), *(cell.rjust(22) for cell in cells)]))
    return "\n".join(lines)


def _cell(rate: float | None, local: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.1f} tok/s" + (f" ({rate / local:.2f}x)" if local else "")


def _call(wishes: Wishes, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """One command, with its output as text; a command that hangs counts as one that failed."""
    words = [*wishes.command, *arguments]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=_LONGEST_RUN_S, check=False)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"did not end within {_LONGEST_RUN_S} s")
    except OSError as error:
        return subprocess.CompletedProcess(words, 127, "", f"{wishes.command[0]}: {error.strerror}")


def _kept(file: Path, answer: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the command wrote into its file, or what it said instead."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"failed": _end(answer.stderr) or f"exit code {answer.returncode}"}
    return found


def _last_json(answer: subprocess.CompletedProcess[str]) -> Any:
    """The last line of stdout as JSON; None when it is none."""
    lines = answer.stdout.strip().splitlines()
    try:
        return json.loads(lines[-1]) if lines else None
    except ValueError:
        return None


def _private(wishes: Wishes, text: str) -> str:
    """The text without the folders of the model and of the user."""
    folders = {str(Path.home())}
    if wishes.model:
        folders |= {str(Path(wishes.model).resolve().parent), str(Path(wishes.model).absolute().parent)}
    for folder in sorted(folders, key=len, reverse=True):
        text = text.replace(folder, "...") if len(folder) > 1 else text
    return text


def _end(text: str) -> str:
    """The end of what a command said, where the error is."""
    return text.strip()[-_LAST_OF_ERROR:]


def _model(wishes: Wishes) -> list[str]:
    return [wishes.model] if wishes.model else []


def _write(out: Path, record: Record) -> None:
    """Whole or not at all: another file takes the name."""
    part = out.with_name(out.name + ".part")
    part.write_text(_private(record.wishes, json.dumps(record.to_json(), indent=1)) + "\n", encoding="utf-8")
    part.replace(out)


def _wishes(args: argparse.Namespace) -> Wishes:
    figures = {
        "--prompt-tokens": args.prompt_tokens,
        "--gen-tokens": args.gen_tokens,
        "--batch": args.batch,
        "--context": args.context,
    }
    bench = tuple(str(word) for flag in (*figures.items(), ("--repeat", args.repeat)) for word in flag)
    return Wishes(tuple(shlex.split(args.homenode)), args.model, args.policies, args.rounds, bench)


def _policies(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if unknown := [name for name in names if name not in POLICIES]:
        raise argparse.ArgumentTypeError(
            f"unknown policy {', '.join(map(repr, unknown))}; wanted some of {','.join(POLICIES)}"
        )
    return names


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Measure every --numa policy here and gather it in one file.")
    parser.add_argument(
        "--model", help="a model as homenode serve takes it; default: the built-in one, which is too small to tell"
    )
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to make")
    parser.add_argument("--policies", type=_policies, default=POLICIES, help=f"default: {','.join(POLICIES)}")
    parser.add_argument("--rounds", type=_count, default=3, help="how often each policy runs; default 3")
    parser.add_argument("--prompt-tokens", type=_count, default=512)
    parser.add_argument("--gen-tokens", type=_count, default=64)
    parser.add_argument("--batch", default="1,8", help="sequences decoded at once, such as 1,8")
    parser.add_argument("--context", type=_count, default=512)
    parser.add_argument("--repeat", type=_count, default=2, help="runs within a round")
    parser.add_argument(
        "--homenode", default=f"{shlex.quote(sys.executable)} -m homenode.cli.main", help="the command to measure"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
