"""One rank or stage of `ranks`, a process of its own: `python -m homenode.bench.engine.rank_peer WORK`, WORK being
JSON."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from typing import Any

import numpy as np

from homenode.compute.native.ranks import NativeRankGroup
from homenode.compute.native.ring import RingReader, RingWriter
from homenode.errors import PeerError

_WAIT_S = 60.0
_MOST_S = 2.0  # of copies to compare with


def sums(work: dict[str, Any]) -> list[tuple[float, float]]:
    """Median seconds of a sum by all threads, and of a copy by the same."""
    group = NativeRankGroup.attach(work["fds"][0], work["number"], _WAIT_S, work["spin_us"])
    found = []
    for rows, columns in work["shapes"]:
        taken, copied = group.time_sums(work["cpus"], work["spin_us"], rows, columns, work["rounds"])
        found.append((statistics.median(taken), statistics.median(copied)))
    group.sum(np.ones(1, np.float32))  # nobody leaves before all are done
    return found


def ring(work: dict[str, Any]) -> list[tuple[float, float]]:
    """Half the median seconds of a way there and back through two rings, and those of a copy."""
    there, back = work["fds"]
    first = work["number"] == 0
    writer, reader = (
        RingWriter(there if first else back, work["spin_us"]),
        RingReader(back if first else there, 0, work["spin_us"]),
    )
    ((rows, columns),) = work["shapes"]
    values, other, seconds = np.ones((rows, columns), np.float32), np.empty((rows, columns), np.float32), []
    for number in range(work["rounds"]):
        begin = time.perf_counter()
        if first:
            writer.write(number, values, _WAIT_S)
            reader.read(number, columns, _WAIT_S)
        else:
            writer.write(number, reader.read(number, columns, _WAIT_S), _WAIT_S)
        seconds.append((time.perf_counter() - begin) / 2)
    copies: list[float] = []
    end = time.perf_counter() + _MOST_S
    while len(copies) < work["rounds"] and time.perf_counter() < end:
        begin = time.perf_counter()
        np.copyto(other, values)
        copies.append(time.perf_counter() - begin)
    if not first:
        reader.release()
        with contextlib.suppress(PeerError):
            # Ends when the first process, which may still be reading, does.
            reader.read(work["rounds"], columns, _WAIT_S)
    return [(statistics.median(seconds), statistics.median(copies))]


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    os.sched_setaffinity(0, asked["cpus"])
    print(json.dumps({"sum": sums, "ring": ring}[asked["kind"]](asked)))
