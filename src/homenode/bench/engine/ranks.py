"""The cost of computing one step in several processes: sums over ranks, and rows handed from one stage to the next,
beside memcpy of as many bytes.

Every rank and stage is a process of its own on CPUs of its own, as far as there are enough: `rank_peer`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from homenode.compute.native.ranks import NativeRankGroup
from homenode.compute.native.ring import RingMemory
from homenode.errors import HostError, PeerError
from homenode.host.bind.base.syscalls import thread_cpus

_PATIENCE_S = 120.0
_SPIN_US = 50


@dataclass(frozen=True)
class ExchangeTimes:
    """Medians over the rounds, of float32 [rows, columns]. `what`: "sum" over `processes` ranks, or "ring": one way
    from one stage to the next."""

    what: str
    processes: int
    threads: int  # of each process
    rows: int
    columns: int
    seconds: float
    copy_seconds: float  # of as many bytes, by the same threads

    @property
    def nbytes(self) -> int:
        """Return the bytes of the values."""
        return 4 * self.rows * self.columns


@dataclass(frozen=True)
class RanksBenchPlan:
    """The measurements to make: [rows, columns] in turn. `spin_us`: how long a process watches before it sleeps; None:
    not at all where CPUs are shared.
    """

    shapes: Sequence[tuple[int, int]]
    ranks: int = 2
    threads: int = 1
    rounds: int = 2000
    spin_us: int | None = None


def cpus_of(processes: int, threads: int) -> tuple[list[list[int]], bool]:
    """Return for each process the CPUs of its threads, and whether some are used twice."""
    usable = thread_cpus()
    places = [[usable[(p * threads + t) % len(usable)] for t in range(threads)] for p in range(processes)]
    return places, processes * threads > len(usable)


def measure(plan: RanksBenchPlan) -> list[ExchangeTimes]:
    """Sums over `plan.ranks`, and the way through a ring. PeerError when a process fails, HostError when it cannot be
    started."""
    return [*_measure_sums(plan), *_measure_rings(plan)]


def _measure_sums(plan: RanksBenchPlan) -> list[ExchangeTimes]:
    memory = NativeRankGroup.make(plan.ranks, max(1 << 20, 2 * max(4 * (r + 16) * (c + 16) for r, c in plan.shapes)))
    places, crowded = cpus_of(plan.ranks, plan.threads)
    work = {"kind": "sum", "shapes": list(plan.shapes), "rounds": plan.rounds, "spin_us": _spin(plan, crowded)}
    answers = _ask([{**work, "fds": [memory.fd], "number": rank, "cpus": cpus} for rank, cpus in enumerate(places)])
    found = []
    for i, (rows, columns) in enumerate(plan.shapes):
        slowest = max(answer[i][0] for answer in answers)
        found.append(
            ExchangeTimes(
                "sum", plan.ranks, plan.threads, rows, columns, slowest, statistics.median(a[i][1] for a in answers)
            )
        )
    return found


def _measure_rings(plan: RanksBenchPlan) -> list[ExchangeTimes]:
    found = []
    places, crowded = cpus_of(2, 1)
    for rows, columns in plan.shapes:
        rings = [RingMemory.make(rows, columns) for _ in range(2)]
        work = {"kind": "ring", "shapes": [(rows, columns)], "rounds": plan.rounds, "spin_us": _spin(plan, crowded)}
        fds = [ring.fd for ring in rings]
        answers = _ask([{**work, "fds": fds, "number": i, "cpus": cpus} for i, cpus in enumerate(places)])
        found.append(ExchangeTimes("ring", 2, 1, rows, columns, *answers[0][0]))
    return found


def _spin(plan: RanksBenchPlan, crowded: bool) -> int:
    if plan.spin_us is not None:
        return plan.spin_us
    return 0 if crowded else _SPIN_US


def _ask(works: Sequence[dict[str, Any]]) -> list[list[list[float]]]:
    """Return for each process what it answers: for each shape the median seconds of an exchange and of a copy."""
    peers: list[subprocess.Popen[str]] = []
    try:
        for work in works:
            command = [sys.executable, "-m", "homenode.bench.engine.rank_peer", json.dumps(work)]
            peers.append(subprocess.Popen(command, pass_fds=work["fds"], stdout=subprocess.PIPE, text=True))
        outputs = [peer.communicate(timeout=_PATIENCE_S)[0] for peer in peers]
    except OSError as error:
        raise HostError(f"a process to measure with could not be started: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"a process to measure with gave no answer within {_PATIENCE_S:.0f} s") from error
    finally:
        for peer in peers:
            peer.kill()
            peer.wait()
    if failed := [p.returncode for p in peers if p.returncode]:
        raise PeerError(f"a process to measure with ended with code {failed[0]}")
    return [json.loads(output) for output in outputs]
