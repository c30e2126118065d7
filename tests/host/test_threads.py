"""Processes and threads from /proc: who there is, who has gone, whose number it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.errors import UserError
from homenode.host.bind.base.target import Target
from homenode.host.bind.base.threads import (
    ProcessId,
    alive,
    ancestors,
    descendants,
    identify,
    parse_stat,
    threads,
    wanted_cpus,
)
from tests.host.children import child

NOBODY = (
    4194303  # the largest process number a 64-bit kernel can be told to use, less one: free on every ordinary machine
)


def test_the_threads_of_a_child_are_listed_main_first_with_their_names() -> None:
    with child() as running:
        first, second = running.thread("acl_thread"), running.thread("release_thread")
        found = threads(running.pid)
        assert found[0].tid == running.pid
        assert {(thread.tid, thread.name) for thread in found[1:]} == {
            (first, "acl_thread"),
            (second, "release_thread"),
        }
        assert {thread.tid for thread in found} == {
            int(path.name) for path in Path(f"/proc/{running.pid}/task").iterdir()
        }


def test_a_name_with_brackets_and_spaces_is_read_whole() -> None:
    with child() as running:
        tid = running.thread("a)_(b")
        assert next(thread.name for thread in threads(running.pid) if thread.tid == tid) == "a)_(b"


def test_a_process_that_is_not_there_is_named() -> None:
    assert not Path(f"/proc/{NOBODY}").exists()
    for look in (identify, threads):
        with pytest.raises(UserError, match=f"no process {NOBODY}"):
            look(NOBODY)
    for pid in (0, -1):
        with pytest.raises(UserError, match=f"no process {pid}"):
            identify(pid)


def test_the_number_of_a_thread_is_refused_with_its_process() -> None:
    with child() as running:
        tid = running.thread("worker")
        with pytest.raises(UserError, match=f"{tid} is the number of a thread of process {running.pid}"):
            identify(tid)


def test_a_process_that_has_ended_and_was_not_waited_for_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    try:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{process.pid}").exists()
        with pytest.raises(UserError, match=f"no process {process.pid} any more"):
            identify(process.pid)
    finally:
        process.wait(10)


@pytest.mark.skipif(
    not Path("/proc/2/stat").exists() or "kthreadd" not in Path("/proc/2/stat").read_text(),
    reason="no kernel threads in sight",
)
def test_a_kernel_thread_is_refused() -> None:
    with pytest.raises(UserError, match="thread of the kernel"):
        identify(2)


def test_another_process_with_the_same_number_is_another_process() -> None:
    with child() as running:
        process = identify(running.pid)
        assert alive(process)
        assert not alive(ProcessId(process.pid, process.start - 1))
    assert not alive(process)


def test_descendants_are_children_and_their_children() -> None:
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-S', '-c', 'input()']); print(p.pid, "
        "flush=True); p.wait()"
    )
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        grandchild = int(process.stdout.readline())
        assert descendants(process.pid) == (grandchild,)
        assert {process.pid, grandchild} <= set(descendants(os.getpid()))
        assert ancestors(grandchild)[:2] == (process.pid, os.getpid())
        assert ancestors(NOBODY) == ()
    finally:
        process.communicate("\n", timeout=10)


def test_a_thread_gets_the_cpus_of_its_longest_name() -> None:
    target = Target((0, 1), {"acl_thread": (2,), "acl_thread_x": (3,), "dev0_sq_send_wq_of_the_driver": (4,)})
    assert wanted_cpus("python", target) == (0, 1)
    assert wanted_cpus("acl_thread", target) == wanted_cpus("acl_thread7", target) == (2,)
    assert wanted_cpus("acl_thread_x1", target) == (3,)
    assert wanted_cpus("dev0_sq_send_wq", target) == (4,)  # the kernel keeps 15 characters
    assert wanted_cpus("my_acl_thread", target) == (0, 1)


@given(st.text(max_size=300))
@settings(deadline=None, derandomize=True)
def test_a_stat_line_of_any_kind_is_read_or_left(text: str) -> None:
    stat = parse_stat(text)
    assert stat is None or ")" in text


@given(st.text(st.characters(blacklist_categories=("Cs",)), max_size=15), st.integers(0, 2**63))
@settings(deadline=None, derandomize=True)
def test_any_name_is_found_again_in_a_stat_line(name: str, start: int) -> None:
    stat = parse_stat(f"17 ({name}) S 1 17 17 0 -1 4194560 {' 0' * 12} {start} 0 0")
    assert stat is not None
    assert (stat.name, stat.state, stat.parent, stat.start) == (name, "S", 1, start)
