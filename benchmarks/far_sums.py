"""Sums of two ranks on two hosts, in clear and over TLS beside each other: `python -m benchmarks.far_sums`.

Words for hosts make two hosts of this machine, so that all goes over loopback, without a network's own time. Medians of
sums called from Python, as a step makes two of them for each layer; the two ways take turns.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from homenode.engine.channels.host_ranks import HostRanksName
from homenode.engine.channels.tcp_ranks import TcpRanks
from homenode.engine.channels.topics import Group
from homenode.engine.executor.rendezvous import Rendezvous
from homenode.net.greeting import Credentials
from homenode.net.make_keys import make_keys
from homenode.net.settings import NetConfig

_IP, _PATIENCE_S = "127.0.0.1", 60.0
_SHAPES = ((1, 896), (1, 4096), (64, 896), (64, 4096))
_WARM, _SUMS = 20, 200


def _seat(engine: str, credentials: Credentials, rank: int) -> TcpRanks:
    name = HostRanksName(Group(0, 0), 2, f"host{rank}", _IP, credentials)
    return TcpRanks(engine, name, rank, _PATIENCE_S, 0)


def _sum_all(seat: TcpRanks, turns: int) -> list[list[float]]:
    """Seconds of each sum of each shape."""
    found: list[list[float]] = [[] for _ in _SHAPES]
    for _ in range(turns):
        for times, shape in zip(found, _SHAPES, strict=True):
            values = np.ones(shape, np.float32)
            for number in range(_WARM + _SUMS):
                values[:] = 1
                begin = time.perf_counter()
                seat.group.sum(values)
                if number >= _WARM:
                    times.append(time.perf_counter() - begin)
    return found


@contextlib.contextmanager
def _hosts(keys: str | None, turns: int) -> Iterator[TcpRanks]:
    """A rank here; the other one, in a process of its own, makes as many sums."""
    rendezvous = Rendezvous(_IP, _PATIENCE_S, NetConfig(keys))
    rendezvous.forget(0)
    command = [sys.executable, "-m", "benchmarks.far_sums", "--turns", str(turns), "--engine", rendezvous.address]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    assert other.stdin
    other.stdin.write(rendezvous.credentials.line() + "\n")
    other.stdin.flush()
    seat = _seat(rendezvous.address, rendezvous.credentials, 0)
    try:
        yield seat
    finally:
        other.stdin.close()
        other.wait(_PATIENCE_S)
        seat.close()
        rendezvous.close()


@click.command()
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True)
@click.option("--engine", hidden=True)
def main(turns: int, engine: str | None) -> None:
    """Print the medians in microseconds."""
    if engine is not None:
        seat = _seat(engine, Credentials.of_line(sys.stdin.readline()), 1)
        _sum_all(seat, turns)
        sys.stdin.read()
        seat.close()
        os._exit(0)  # threads of the core still hold memory, of which nanobind would tell
    with tempfile.TemporaryDirectory() as folder:
        make_keys(Path(folder) / "keys", [], 1)
        found: dict[str, list[list[float]]] = {}
        for _ in range(2):
            for what, keys in (("in clear", None), ("TLS", f"{folder}/keys")):
                with _hosts(keys, turns) as seat:
                    for all_times, times in zip(
                        found.setdefault(what, [[] for _ in _SHAPES]), _sum_all(seat, turns), strict=True
                    ):
                        all_times += times
    for index, (rows, columns) in enumerate(_SHAPES):
        medians = {what: statistics.median(times[index]) * 1e6 for what, times in found.items()}
        shown = "  ".join(f"{what} {median:8.1f} us" for what, median in medians.items())
        click.echo(f"{rows:3} x {columns:5}  {shown}")


if __name__ == "__main__":
    main()
