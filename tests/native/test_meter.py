"""Bursts that measure the machine: figures of a sensible size, on the CPUs asked for, at every level."""

from __future__ import annotations

import itertools
import os

import pytest

from homenode import _native
from homenode.bench.machine.repetition import take_reading
from homenode.compute.native import NativeBackend, available_levels

_MEBIBYTE = 1 << 20


def test_bursts_are_of_a_sensible_size(backend: NativeBackend) -> None:
    reading = take_reading(backend.meter(64 * _MEBIBYTE))
    c = reading.ceilings
    assert 0.05e9 < c.read < 5e12
    assert all(0.1e9 < ops < 100e12 for ops in (c.int8, c.bf16, c.f32))
    assert c.int8 > c.f32, "every level multiplies small integers faster than floats"
    (trip,) = reading.fingerprint.round_trips
    assert 1 < trip < 10e6


def test_wider_levels_multiply_more() -> None:
    rates = [
        max(NativeBackend([-1], level=level).meter(_MEBIBYTE).multiply("int8") for _ in range(20))
        for level in ("scalar", "avx2", "avx2vnni", "avx512", "neon", "dotprod")
        if level in available_levels()
    ]
    assert all(wide > 0.9 * narrow for narrow, wide in itertools.pairwise(rates))


def test_memory_is_kept_within_what_was_asked_but_for_a_page_a_thread() -> None:
    buffer = _native.ReadBuffer(_native.ThreadPool([-1] * 3, 0, False), 5 * _MEBIBYTE)
    assert buffer.nbytes == 3 * 6 * _MEBIBYTE
    assert buffer.read(_native.Level.scalar, True, 2, 3) > 0
    for part, parts in ((0, 4), (3, 3), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="of a slice of 3 huge pages"):
            buffer.read(_native.Level.scalar, False, part, parts)


def test_one_thread_has_nobody_to_answer() -> None:
    meter = NativeBackend([-1]).meter(2 * _MEBIBYTE)
    assert meter.round_trips() == ()
    assert meter.read(False, short=True) > 0


def test_the_threads_are_on_the_cpus_asked_for() -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    backend = NativeBackend(cpus, spin_us=0)
    meter = backend.meter(4 * _MEBIBYTE)
    meter.read(True, short=False)
    assert meter.cpus == cpus
    affinities = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]  # noqa: PTH208
    assert all({cpu} in affinities for cpu in cpus[1:])


def test_two_threads_on_one_cpu_still_answer_each_other() -> None:
    cpu = min(os.sched_getaffinity(0))
    assert _native.round_trip_ns(_native.ThreadPool([cpu, cpu], 0, True), 1, 3) > 0


@pytest.mark.parametrize("other", [0, 2, -1])
def test_only_another_member_can_be_asked(other: int) -> None:
    with pytest.raises(ValueError, match="of a thread pool of 2"):
        _native.round_trip_ns(_native.ThreadPool([-1, -1], 0, False), other, 10)


@pytest.mark.parametrize("rounds", [0, -1, 2**31 - 1])
def test_rounds_out_of_bounds_are_refused(rounds: int) -> None:
    pool = _native.ThreadPool([-1, -1], 0, False)
    with pytest.raises(ValueError, match="rounds; wanted"):
        _native.round_trip_ns(pool, 1, rounds)
    with pytest.raises(ValueError, match="rounds; wanted"):
        _native.multiply_burst(pool, _native.Level.scalar, _native.Multiply.f32, rounds)


@pytest.mark.parametrize("size", [0, 1 << 40])
def test_sizes_out_of_bounds_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="wanted 1 to"):
        _native.ReadBuffer(_native.ThreadPool([-1, -1], 0, False), size)
