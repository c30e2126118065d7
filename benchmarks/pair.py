"""Pairs of measurements in one go: our side, the other one, ours, the other one, with a reading of the machine before, between and after.

`python -m benchmarks.pair TASK THREADS`: TASK is a JSON list of sides, each a list of commands (`Command.to_json`). Being a program of its own it
can be started through another one that keeps the machine quiet meanwhile. Prints one JSON object: `outputs`, the standard output of every command
of every side; `others`, the share of the CPUs that other programs used beside each side; `readings` (fingerprint and ceilings), one more than
sides; or `failed`, in words.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.contender import Unavailable
from benchmarks.others import Others
from homenode.bench.steady import Reading, take_reading

_LIMIT_S = 1800.0
_SHOWN = 600  # characters of what a failing command said last


class CommandFailed(Exception):
    """A command did not end well; the message says how."""


def run_command(command: dict[str, Any]) -> str:
    """Its standard output. Raises CommandFailed."""
    argv, variables = command["argv"], {**os.environ, **command["variables"]}
    try:
        done = subprocess.run(argv, env=variables, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandFailed(f"{argv[0]}: {error}") from error
    if done.returncode:
        raise CommandFailed(f"{argv[0]} ended with {done.returncode}: {done.stderr.strip()[-_SHOWN:]}")
    return done.stdout


def run_sides(task: list[list[dict[str, Any]]], read: Callable[[], Reading]) -> dict[str, Any]:
    """What the program prints; `read` reads the machine."""
    readings, outputs, shares = [reading_json(read())], [], []
    for side in task:
        try:
            with Others() as others:
                outputs.append([run_command(command) for command in side])
        except CommandFailed as error:
            return {"failed": str(error)}
        shares.append(others.share)
        readings.append(reading_json(read()))
    return {"readings": readings, "outputs": outputs, "others": shares}


def reading_json(reading: Reading) -> dict[str, object]:
    """Fingerprint and ceilings."""
    return {**reading.fingerprint.to_json(), "ceilings": reading.ceilings.to_json()}


def last_json(argv: Sequence[str]) -> dict[str, Any]:
    """Run such a program and take what it prints. Raises Unavailable with the reason it gives."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"measuring ended with {done.returncode}: {done.stderr.strip()[-_SHOWN:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if "failed" in found:
        raise Unavailable(found["failed"])
    return found


def main() -> None:
    """Measure."""
    from homenode.cli.bench_options import meter_of, native_backend

    threads = int(sys.argv[2])
    meter = meter_of(native_backend(threads, None))
    print(json.dumps(run_sides(json.loads(sys.argv[1]), lambda: take_reading(meter))))


if __name__ == "__main__":
    main()
