"""Passes of programs that take turns, of which the fastest counts."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from homenode.compute.ops import Program, StepArrays

_RUN_SECONDS = 0.2
_PASSES = 12  # of a run at the least, unless that takes too long
_MOST_SECONDS = 2.0


class Passes:
    """Runs programs of `pieces` equal pieces of work each in turn; a call does so for a while and gives the seconds of
    a piece in the fastest pass.

    `least_cpu`: CPU seconds, of all threads, of one piece in the call that used least. The kernel accounts for running
    threads once in some milliseconds, so it is counted over many passes.
    """

    def __init__(self, programs: Sequence[Program], arrays: StepArrays, pieces: int) -> None:
        self._programs = itertools.cycle(programs)
        self._pieces = pieces
        self._arrays = arrays
        self.least_cpu = float("inf")

    def __call__(self) -> float:
        fastest, begin, cpu = float("inf"), time.perf_counter(), time.process_time()
        for passes, program in enumerate(self._programs, 1):
            start = time.perf_counter()
            program.run(self._arrays)
            end = time.perf_counter()
            fastest = min(fastest, end - start)
            if end - begin > _RUN_SECONDS and (passes >= _PASSES or end - begin > _MOST_SECONDS):
                self.least_cpu = min(self.least_cpu, (time.process_time() - cpu) / passes / self._pieces)
                break
        return fastest / self._pieces
