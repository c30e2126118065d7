"""Watching a real process: late threads bound, drift told once and put back when asked, an end noticed at once."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from homenode.errors import UserError
from homenode.host.bind import watch as watch_module
from homenode.host.bind.apply import apply
from homenode.host.bind.base.report import Report
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import identify
from homenode.host.bind.watch import watch
from tests.host.children import CPUS, ONE, OTHER, Child, child, masks, two_cpus
from tests.waiting import wait_until

PLAN = Target((ONE,), {"acl_thread": (OTHER,)})


class Watcher:
    """`watch` in a thread of its own, and what it has told."""

    def __init__(self, pid: int, target: Target, **options: bool) -> None:
        self.reports: list[Report] = []
        self._thread = threading.Thread(target=self._run, args=(pid, target), kwargs=options)
        self._thread.start()

    def _run(self, pid: int, target: Target, **options: bool) -> None:
        watch(pid, target, every_s=0.02, until=time.monotonic() + 20, on_report=self.reports.append, **options)

    def codes(self) -> list[str]:
        return [finding.code for report in self.reports for finding in report.findings]

    def done(self) -> list[str]:
        return [step.detail for report in self.reports for step in report.steps]

    def join(self, seconds: float = 5.0) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()


@contextmanager
def watched(running: Child, target: Target = PLAN, **options: bool) -> Iterator[Watcher]:
    watcher = Watcher(running.pid, target, **options)
    try:
        yield watcher
    finally:
        running.end()
        assert watcher.join(), "the end of the process was not noticed"


@two_cpus
def test_threads_born_late_and_those_that_take_a_role_are_bound() -> None:
    with child() as running:
        apply(running.pid, PLAN)
        with watched(running) as watcher:
            late = running.thread("acl_thread")
            wait_until(lambda: masks(running.pid)[late] == (OTHER,))
            renamed = running.thread("worker")
            wait_until(lambda: masks(running.pid)[renamed] == (ONE,))
            assert running.tell("rename", "worker", "acl_thread_2") == "renamed"
            wait_until(lambda: masks(running.pid)[renamed] == (OTHER,))
            wait_until(lambda: len(watcher.done()) == 2)
            assert f"{late} (acl_thread) from CPUs {ONE} to {OTHER}" in watcher.done()[0]
            assert watcher.codes() == []


@two_cpus
def test_drift_is_told_once_and_left_unless_repair_is_asked_for() -> None:
    with child() as running:
        tid = running.thread("worker")
        apply(running.pid, PLAN)
        with watched(running) as watcher:
            wait_until(lambda: masks(running.pid)[tid] == (ONE,))
            witness = running.thread("acl_thread")
            wait_until(lambda: masks(running.pid)[witness] == (OTHER,))  # the watcher has had its first look
            os.sched_setaffinity(tid, {OTHER})
            wait_until(lambda: watcher.codes() == ["thread_off_plan"])
            running.thread("acl_thread_2")  # two more looks at least
            wait_until(lambda: len(watcher.done()) == 2)
            assert masks(running.pid)[tid] == (OTHER,)
            assert watcher.codes() == ["thread_off_plan"]
            os.sched_setaffinity(tid, set(CPUS))
            wait_until(lambda: watcher.codes() == ["thread_off_plan"] * 2)


@two_cpus
def test_drift_is_repaired_when_asked() -> None:
    with child() as running:
        apply(running.pid, PLAN)
        with watched(running, repair=True) as watcher:
            witness = running.thread("acl_thread")
            wait_until(lambda: masks(running.pid)[witness] == (OTHER,))
            for times in (1, 2):
                os.sched_setaffinity(running.pid, {OTHER})
                wait_until(lambda: masks(running.pid)[running.pid] == (ONE,))
                wait_until(lambda times=times: watcher.codes() == ["thread_off_plan"] * times)


@two_cpus
def test_only_looking_touches_nothing() -> None:
    with child() as running:
        late = running.thread("acl_thread")
        before = masks(running.pid)
        with watched(running, bind_late=False) as watcher:
            wait_until(lambda: watcher.codes() == ["thread_off_plan"] * 2)
            assert masks(running.pid) == before
            assert late in before


@two_cpus
def test_a_refused_thread_is_told_once_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    class Refusing(watch_module.Syscalls):
        def set_affinity(self, tid: int, cpus: object) -> None:
            tried.append(tid)
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(watch_module, "Syscalls", Refusing)
    with child() as running:
        running.thread("one")
        with watched(running, repair=True) as watcher:
            wait_until(lambda: watcher.codes().count("affinity_refused") == 2)
            wait_until(lambda: watcher.codes().count("thread_off_plan") == 2)
        assert len(tried) == len(set(tried)) == 2
        assert watcher.codes().count("affinity_refused") == 2


def test_the_end_of_the_process_is_noticed_long_before_the_next_look() -> None:
    with child() as running:
        timer = threading.Timer(0.1, running.end)
        timer.start()
        begin = time.monotonic()
        watch(running.pid, Target(()), every_s=60.0, on_report=lambda report: None)
        assert time.monotonic() - begin < 10
        timer.join()


def test_a_deadline_ends_it() -> None:
    with child() as running:
        begin = time.monotonic()
        report = watch(running.pid, Target(()), every_s=60.0, until=begin + 0.1, on_report=lambda report: None)
        assert 0.1 <= time.monotonic() - begin < 10
        assert report.ok and not report.steps


def test_threads_that_have_ended_are_forgotten() -> None:
    with child() as running:
        watched = watch_module._Watched(identify(running.pid), Target(CPUS), Syscalls(), True, False)
        for number in range(3):
            tid = running.thread(f"worker{number}")
            watched.check()
            assert {key[0] for key in watched.known} == set(masks(running.pid)) == {running.pid, tid}
            assert running.tell("end", f"worker{number}") == "ended"
            wait_until(lambda tid=tid: tid not in masks(running.pid))


def test_watching_costs_little() -> None:
    with child() as running:
        before = time.process_time()
        watch(running.pid, Target(()), every_s=0.0, until=time.monotonic() + 0.5, on_report=lambda report: None)
        assert time.process_time() - before < 0.25  # even when asked to look all the time


def test_a_process_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match="no process 4194303"):
        watch(4194303, PLAN, on_report=lambda report: None)


def test_pauses_grow_while_there_is_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    class Ending:
        def __init__(self, pid: int) -> None: ...

        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            return len(pauses) == 12

        def close(self) -> None: ...

    monkeypatch.setattr(watch_module, "_Ending", Ending)
    watch(os.getpid(), Target(tuple(os.sched_getaffinity(0))), every_s=1.0, slowest_s=4.0, on_report=lambda _: None)
    assert pauses[0] == 1.0
    assert pauses == sorted(pauses)
    assert pauses[-1] == 4.0
