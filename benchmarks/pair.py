"""Pairs of measurements in one go: our side, the other one, ours, the other one, with a reading of the machine before,
between and after.

`python -m benchmarks.pair TASK THREADS`: TASK is a JSON list of pieces, each a list of two sides (`Side.to_json`). A
piece is measured again until it counts, that is until CPUs stayed where they are and nobody else used them, for some
minutes at most. Being a program of its own it can be started through another one that keeps the machine quiet
meanwhile. Prints one JSON object: `tries`, a list for each piece, of every try `outputs`, the standard output of every
command of both sides, `others`, the share of the CPUs that other programs used beside each, `readings` (fingerprint and
ceilings), before, between and after, and `discarded`, why it does not count, or null; or `failed`, in words.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.contender import Unavailable
from benchmarks.machine import moved_between
from benchmarks.others import Others, disturbed
from benchmarks.standing import CommandFailed, Standing
from homenode.bench.machine.repetition import MachineReading, take_reading

_LIMIT_S = 1800.0
_PATIENCE_S = 120.0  # with a piece that does not count
_SHOWN = 600  # characters of what a failing command said last


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


def run_pieces(
    pieces: list[list[dict[str, Any]]], read: Callable[[], MachineReading], patience_s: float = _PATIENCE_S
) -> dict[str, Any]:
    """What the program prints; `read` reads the machine."""
    tries: list[list[dict[str, Any]]] = []
    with Standing() as standing:
        try:
            for sides in pieces:
                tries.append(_until_counted(sides, read, standing, patience_s))
        except CommandFailed as error:
            return {"failed": str(error)}
    return {"tries": tries}


def _until_counted(
    sides: list[dict[str, Any]], read: Callable[[], MachineReading], standing: Standing, patience_s: float
) -> list[dict[str, Any]]:
    for side in sides:
        # Asked for the first time: loads and warms up, which is not to happen between two readings.
        if side["question"] is not None:
            _output(side, standing)
    tries: list[dict[str, Any]] = []
    end = time.monotonic() + patience_s
    while not tries or (tries[-1]["discarded"] is not None and time.monotonic() < end):
        tries.append(_one_try(sides, read, standing))
    return tries


def _one_try(sides: list[dict[str, Any]], read: Callable[[], MachineReading], standing: Standing) -> dict[str, Any]:
    readings, outputs, shares = [reading_json(read())], [], []
    for side in sides:
        with Others(_standing_process(side, standing)) as others:
            outputs.append(_output(side, standing))
        shares.append(others.share)
        readings.append(reading_json(read()))
    discarded = moved_between(readings) or disturbed(dict(zip(("homenode", "the other side"), shares, strict=True)))
    return {"outputs": outputs, "others": shares, "readings": readings, "discarded": discarded}


def _standing_process(side: dict[str, Any], standing: Standing) -> int | None:
    """Of a side with a question, whose program is ready then; None for others. Raises CommandFailed."""
    if side["question"] is None:
        return None
    (command,) = side["commands"]
    return standing.ready(command["argv"], command["variables"])


def _output(side: dict[str, Any], standing: Standing) -> list[str]:
    """Of every command. Raises CommandFailed."""
    if _standing_process(side, standing) is None:
        return [run_command(command) for command in side["commands"]]
    (command,) = side["commands"]
    return [standing.ask(command["argv"], side["question"])]


def reading_json(reading: MachineReading) -> dict[str, object]:
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
    from homenode.cli.benchmarks.options import meter_of, native_backend

    threads = int(sys.argv[2])
    meter = meter_of(native_backend(threads, None))
    print(json.dumps(run_pieces(json.loads(sys.argv[1]), lambda: take_reading(meter))))


if __name__ == "__main__":
    main()
