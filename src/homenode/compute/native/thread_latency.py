"""The time that threads on given CPUs need to meet, and to answer each other."""

from __future__ import annotations

import time
from collections.abc import Sequence

from homenode import _native

_SPIN_US = 200  # longer than any of these waits, so that nobody falls asleep between two
_ROUNDS = 500
_BURSTS = 12
_STARTS = 200
_EXCHANGES = 200
_LEAST_US = 0.01  # what a clock can tell; one thread alone has nobody to meet


def barrier_us(cpus: Sequence[int], groups: Sequence[Sequence[int]]) -> float:
    """Microseconds until all threads on `cpus` have met at a barrier; `groups` as NativeBackend takes them.

    The lesser of two upper bounds, each the best of many bursts: rounds of two barriers with a counter that all of them
    count on, and starting and ending a run with a barrier in it, less what a run of one thread takes. OSError when a
    thread cannot be pinned.
    """
    if len(cpus) == 1:
        return _LEAST_US
    pool = _native.ThreadPool(list(cpus), _SPIN_US, True, groups)
    counted = min(_seconds_of_rounds(pool) for _ in range(_BURSTS)) / (2 * _ROUNDS)
    started = (_seconds_of_a_start(pool) - _seconds_of_a_start(_native.ThreadPool([cpus[0]], _SPIN_US, True, None))) / 2
    bounds = [seconds * 1e6 for seconds in (counted, started) if seconds > 0]
    return max(min(bounds, default=_LEAST_US), _LEAST_US)


def round_trip_ns(cpu: int, other: int) -> float:
    """Nanoseconds until a thread on `cpu` has the answer of one on `other`: the best of many bursts. OSError when they
    cannot be pinned.
    """
    pool = _native.ThreadPool([cpu, other], _SPIN_US, True, None)
    return min(_native.round_trip_ns(pool, 1, _EXCHANGES) for _ in range(_BURSTS))


def _seconds_of_rounds(pool: _native.ThreadPool) -> float:
    begin = time.perf_counter()
    pool.exercise(1, _ROUNDS)
    return time.perf_counter() - begin


def _seconds_of_a_start(pool: _native.ThreadPool) -> float:
    level = _native.best_level()
    best = float("inf")
    for _ in range(_STARTS):
        begin = time.perf_counter()
        _native.multiply_burst(pool, level, _native.Multiply.int8, 1)
        best = min(best, time.perf_counter() - begin)
    return best
