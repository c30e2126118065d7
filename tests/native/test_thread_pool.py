"""The pool: barriers that hold, sleepers that wake, threads that rest when there is nothing to do."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode import _native
from homenode.compute.native import NativeBackend
from homenode.compute.ops import KvGeometry
from homenode.engine.plan.cpu_contention import interrupted
from homenode.errors import HostError, UserError
from tests.examples import examples


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("spin_us", [0, 30])
def test_barriers_let_nobody_through_early(threads: int, spin_us: int) -> None:
    pool = _native.ThreadPool([-1] * threads, spin_us, False)
    assert pool.exercise(50, 40) == 0


def test_more_threads_than_cpus_on_one_cpu() -> None:
    cpu = min(os.sched_getaffinity(0))
    assert _native.ThreadPool([cpu] * 4, 0, True).exercise(20, 20) == 0


def test_many_short_runs_wake_sleepers() -> None:
    """With no spinning, every run finds the workers asleep or falling asleep: a lost wake-up would hang here."""
    assert _native.ThreadPool([-1] * 3, 0, False).exercise(3000, 1) == 0


def _own_threads() -> set[int]:
    return {int(entry.name) for entry in Path("/proc/self/task").iterdir()}


def test_threads_move_between_runs_and_their_caller_with_the_next() -> None:
    """Also to several CPUs each; who is not pinned, and who is given no place, stays."""
    allowed = sorted(os.sched_getaffinity(0))
    first, last = allowed[0], allowed[-1]
    others = _own_threads()
    pool = _native.ThreadPool([first] * 3, 0, True)
    threads = sorted(_own_threads() - others)
    assert [os.sched_getaffinity(each) for each in threads] == [{first}, {first}]
    pool.move([[last], allowed, []])
    assert pool.exercise(20, 20) == 0
    assert [os.sched_getaffinity(each) for each in threads] == [set(allowed), {first}]
    assert pool.cpus == [last, -1 if len(allowed) > 1 else first, first]
    assert os.sched_getaffinity(0) == set(allowed), "the caller gets its own CPUs back"


def test_threads_move_while_others_compute() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    pool = _native.ThreadPool([allowed[0]] * 2, 0, True)
    missed: list[int] = []
    worker = threading.Thread(target=lambda: missed.append(pool.exercise(300, 20)))
    worker.start()
    for turn in range(50):
        pool.move([[allowed[turn % len(allowed)]], [allowed[(turn + 1) % len(allowed)]]])
    worker.join()
    assert missed == [0]


@pytest.mark.parametrize(
    ("places", "error", "words"),
    [
        ([[0]], ValueError, "places for 1 threads of a thread pool of 2"),
        ([[8191], [0]], OSError, "CPU 8191"),
        ([[0], [8191]], OSError, "CPU 8191"),
        ([[0], [-3]], OSError, "CPU -3"),
        ([[0], [9000, 1]], OSError, "CPU 9000,1"),
    ],
)
def test_places_that_cannot_be_are_named(places: list[list[int]], error: type[Exception], words: str) -> None:
    pool = _native.ThreadPool([min(os.sched_getaffinity(0))] * 2, 0, True)
    with pytest.raises(error, match=words):
        pool.move(places)
    pool.move([[min(os.sched_getaffinity(0))]] * 2)
    assert pool.exercise(5, 5) == 0, "it works where it can be"


_names = st.integers(-1, 2)
_shapes = st.lists(st.lists(_names, max_size=3), min_size=1, max_size=9)


@settings(max_examples=examples(40), deadline=None)
@given(groups=_shapes, spin_us=st.sampled_from([0, 5, 100]))
def test_groups_of_any_shape_let_nobody_through_early(groups: list[list[int]], spin_us: int) -> None:
    """Nested groups, groups of one, threads of no group; more threads than most test machines have CPUs."""
    pool = _native.ThreadPool([-1] * len(groups), spin_us, False, groups)
    assert pool.exercise(3, 30) == 0


@pytest.mark.parametrize(
    "groups", [[(0, 0), (0, 0), (0, 1), (0, 1), (1, 2), (1, 2), (1, 3), (1, 3)], [(i,) for i in range(8)]]
)
def test_groups_hold_when_all_threads_share_one_cpu(groups: list[tuple[int, ...]]) -> None:
    cpu = min(os.sched_getaffinity(0))
    assert _native.ThreadPool([cpu] * 8, 20, True, groups).exercise(20, 20) == 0


def test_impossible_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="groups of 1 threads for a thread pool of 2"):
        _native.ThreadPool([-1, -1], 0, False, [(0,)])
    with pytest.raises(ValueError, match="groups 9 deep; at most 8"):
        _native.ThreadPool([-1], 0, False, [range(9)])


def test_threads_that_share_cpus_watch_for_a_short_time_only() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    assert NativeBackend(cpus, spin_us=1000).statistics()["spin_us"] == 1000
    assert NativeBackend([-1] * len(cpus), spin_us=1000).statistics()["spin_us"] == 1000
    for sharing in ([*cpus, cpus[0]], [-1] * (len(cpus) + 1)):
        assert NativeBackend(sharing, spin_us=1000).statistics()["spin_us"] < 10


def test_threads_whose_cpu_others_want_notice_it() -> None:
    """Two threads, each on a CPU of its own or on the only one, and on each of them two more threads that
    never rest.
    """
    cpus = sorted(os.sched_getaffinity(0))
    backend = NativeBackend([cpus[0], cpus[-1]], spin_us=1000)
    assert backend.statistics()["lost_cpu_shares"] == [0.0, 0.0]
    busy = [
        subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"])
        for cpu in cpus[:1] + cpus[-1:]
        for _ in range(2)
    ]
    try:
        deadline = time.monotonic() + 60
        while interrupted(backend.statistics()) is None:
            assert time.monotonic() < deadline, backend.statistics()
            assert backend._pool.exercise(1, 5000) == 0
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_runs_from_several_threads_take_turns() -> None:
    pool = _native.ThreadPool([-1, -1], 0, False)
    missed: list[int] = []
    callers = [threading.Thread(target=lambda: missed.append(pool.exercise(50, 5))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert missed == [0] * 4


def test_idle_team_uses_no_cpu() -> None:
    pool = _native.ThreadPool([-1] * 4, 50, False)
    pool.exercise(10, 10)
    begin_cpu, begin = time.process_time(), time.monotonic()
    threading.Event().wait(0.5)
    used, passed = time.process_time() - begin_cpu, time.monotonic() - begin
    assert used < 0.05 * passed


def test_threads_end_with_the_pool() -> None:
    gc.collect()  # pools that earlier tests left in cycles
    before = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    pool = _native.ThreadPool([-1] * 5, 50, False)
    assert len(os.listdir("/proc/self/task")) == before + 4  # noqa: PTH208
    del pool
    gc.collect()
    assert len(os.listdir("/proc/self/task")) == before  # noqa: PTH208


def test_threads_are_pinned_and_the_caller_gets_its_cpus_back() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    backend = NativeBackend(cpus, spin_us=0)
    backend.kv_cache(KvGeometry.uniform(1, 1, 8, 32, "f32"), 4)  # a run of the pool
    affinities = [os.sched_getaffinity(int(task)) for task in os.listdir("/proc/self/task")]  # noqa: PTH208
    assert os.sched_getaffinity(0) == set(cpus)
    if len(cpus) > 1:
        assert all({cpu} in affinities for cpu in cpus[1:])
    assert backend.statistics()["cpus"] == cpus


def test_impossible_cpu_is_a_host_error_that_names_it() -> None:
    with pytest.raises(HostError, match=r"CPU 1000") as caught:
        NativeBackend([-1, 1000])
    assert caught.value.facts["errno"]
    with pytest.raises(HostError, match=r"CPU 1001"):
        NativeBackend([1001])


def test_no_thread_is_a_user_error() -> None:
    with pytest.raises(UserError, match="at least one thread"):
        NativeBackend([])


def test_unknown_level_lists_the_known_ones() -> None:
    with pytest.raises(
        UserError, match=r"'sse9' is unknown; choose one of scalar, avx2, avx2vnni, avx512, avx512bf16, amx, neon"
    ):
        NativeBackend([-1], level="sse9")


def test_weights_keep_their_team_alive() -> None:
    weight = NativeBackend([-1, -1]).weight_from_array(np.eye(3, dtype=np.float32), "F32")
    gc.collect()
    assert np.array_equal(weight.unpack_row(1), [0, 1, 0])
