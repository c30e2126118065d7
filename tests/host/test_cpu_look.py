"""A short look at the CPUs sees who runs there, and not who looks."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from homenode.host.bind.cpu_look import CpuLook
from homenode.host.topology.source import RecordedSource
from tests.waiting import wait_until

SPIN = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"
STAT = "cpu0 {busy} 0 0 {idle} 0 0 0 {stolen}\n"


def look_of(before: str, after: str) -> dict[int, float]:
    source = RecordedSource("x86_64", {"/proc/stat": before})
    look = CpuLook((), source)
    look._source = RecordedSource("x86_64", {"/proc/stat": after})
    return dict(look.finish(0.0))


@pytest.mark.parametrize(
    ("busy", "idle", "stolen", "share"), [(0, 10, 0, 0.0), (5, 5, 0, 0.5), (0, 5, 5, 0.5), (10, 0, 0, 1.0)]
)
def test_time_of_others_is_what_was_neither_idle_nor_ones_own(busy: int, idle: int, stolen: int, share: float) -> None:
    seen = look_of(
        STAT.format(busy=100, idle=50, stolen=7), STAT.format(busy=100 + busy, idle=50 + idle, stolen=7 + stolen)
    )
    assert seen == {0: share}


def test_where_the_kernel_tells_nothing_nothing_is_seen() -> None:
    assert look_of("", "") == {} and look_of(STAT.format(busy=1, idle=1, stolen=0), "") == {}


def test_a_busy_program_is_seen_where_it_runs() -> None:
    cpu = max(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", SPIN, str(cpu)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            # On a machine where more programs run than there are CPUs this one shows less; its CPU is never idle.
            wait_until(lambda: CpuLook().finish(0.3).get(cpu, 1.0) > 0.9, lambda: str(CpuLook().finish(0.3)))
        finally:
            other.kill()


def test_what_one_computes_oneself_does_not_count() -> None:
    def look() -> float:
        cpu = min(os.sched_getaffinity(0))
        look, before = CpuLook(), os.sched_getaffinity(0)
        os.sched_setaffinity(0, {cpu})
        own = time.thread_time()
        end = time.monotonic() + 0.3
        while time.monotonic() < end:
            pass
        own = time.thread_time() - own
        seen = look.finish(0.0).get(cpu, 0.0)
        os.sched_setaffinity(0, before)
        return seen + own / 0.3 - 1.0  # what others had of this CPU is what this thread had not

    wait_until(lambda: abs(look()) < 0.15, lambda: "own time was counted")
