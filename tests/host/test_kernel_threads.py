"""A driver's threads in the kernel: found by name in /proc, bound, compared, put back. /proc and the kernel's masks are
a test's own here.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from homenode.host.bind import undo as undoing
from homenode.host.bind.base.state import State
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.threads import ProcessId
from homenode.host.bind.kernel_threads import bind_kernel_threads, find_kernel_threads, verify_kernel_threads
from homenode.host.bind.undo import undo

NAME = "uvb_poll_window_thread"
WANTED = {NAME: (1, 2, 3)}
KERNEL, PROGRAM = 0x00200040, 0x00400000  # the flag PF_KTHREAD is in the first only


class Kernel(Syscalls):
    """Masks by thread; `refuses` is what setting one ends with."""

    def __init__(self, masks: dict[int, tuple[int, ...]], refuses: int = 0) -> None:
        super().__init__()
        self.masks, self.refuses = masks, refuses

    def affinity(self, tid: int) -> tuple[int, ...]:
        return self.masks[tid] if tid in self.masks else super().affinity(tid)

    def set_affinity(self, tid: int, cpus: Iterable[int]) -> None:
        if tid not in self.masks:
            return super().set_affinity(tid, cpus)
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        self.masks[tid] = tuple(cpus)
        return None


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Two threads of the kernel by that name, one of them cut to fifteen characters as older kernels do, and others
    that are not meant.
    """
    entries = {
        201: (NAME, KERNEL),
        202: (NAME[:15], KERNEL),
        203: ("kworker/0:1", KERNEL),
        204: (NAME[:15], PROGRAM),
    }
    for pid, (name, flags) in entries.items():
        (tmp_path / str(pid)).mkdir()
        fields = ["S", "2", "0", "0", "0", "-1", str(flags), *["0"] * 12, str(9000 + pid), "0", "0"]
        (tmp_path / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}\n")
    (tmp_path / "self").mkdir()
    return tmp_path


def test_threads_of_the_kernel_are_found_whole_and_cut_names_alike(proc: Path) -> None:
    assert [thread.tid for thread in find_kernel_threads(NAME, proc)] == [201, 202]


def test_they_are_bound_read_back_and_put_back(proc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    state, kernel = State(folder), Kernel({201: tuple(range(8)), 202: (2, 3)})
    report = bind_kernel_threads(os.getpid(), WANTED, state, kernel, proc)
    assert report.ok and not report.findings
    assert kernel.masks == {201: (1, 2, 3), 202: (2, 3)}  # the second one was where it belongs
    assert not verify_kernel_threads(WANTED, kernel, proc).findings
    monkeypatch.setattr(undoing, "same", lambda process: process == ProcessId(201, 9201))
    assert undo(os.getpid(), state, calls=kernel).ok
    assert kernel.masks[201] == tuple(range(8))


def test_a_refusal_is_a_finding_and_stops_nothing(proc: Path) -> None:
    kernel = Kernel({201: (0,), 202: (0,)}, refuses=errno.EPERM)
    report = bind_kernel_threads(os.getpid(), WANTED, None, kernel, proc)
    assert [finding.code for finding in report.findings] == ["kernel_thread_refused"] * 2
    assert report.ok and "EPERM" in report.findings[0].message


def test_threads_that_cannot_be_seen_are_told_with_what_to_do(tmp_path: Path) -> None:
    report = bind_kernel_threads(os.getpid(), WANTED, None, Kernel({}), tmp_path)
    assert [finding.code for finding in report.findings] == ["kernel_threads_not_seen"]
    assert NAME in report.findings[0].message and "--pid=host" in report.findings[0].remedy
    assert not verify_kernel_threads(WANTED, Kernel({}), tmp_path).findings


def test_one_that_has_left_its_place_is_a_warning(proc: Path) -> None:
    report = verify_kernel_threads(WANTED, Kernel({201: (7,), 202: (1,)}), proc)
    assert [finding.code for finding in report.findings] == ["kernel_thread_off_plan"]
    assert "201" in report.findings[0].message
