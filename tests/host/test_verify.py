"""What verify says is what /proc says: masks, memory policy and where pages are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from homenode.cpuset import parse_cpu_list
from homenode.errors import UserError
from homenode.host.bind import verify as verify_module
from homenode.host.bind.apply import apply
from homenode.host.bind.base.report import ActionResult, Report
from homenode.host.bind.base.target import Target
from homenode.host.bind.memory.memory_map import MemoryMap, Placement, Policy, Range
from homenode.host.bind.verify import verify
from homenode.host.topology.finding import Finding
from tests.host.children import CPUS, ONE, OTHER, child, masks, numa, two_cpus


@two_cpus
def test_a_bound_process_verifies_without_a_finding() -> None:
    with child() as running:
        running.thread("worker")
        running.thread("acl_thread")
        target = Target((ONE,), {"acl_thread": (OTHER,)})
        apply(running.pid, target)
        report = verify(running.pid, target)
        assert report.ok and report.findings == ()
        assert [(step.what, step.outcome) for step in report.steps] == [("affinity", "done")]


@two_cpus
def test_a_thread_that_moved_away_is_found_with_its_name_and_both_masks() -> None:
    with child() as running:
        tid = running.thread("worker")
        apply(running.pid, Target((ONE,)))
        os.sched_setaffinity(tid, {OTHER})
        report = verify(running.pid, Target((ONE,)))
        assert not report.ok
        (finding,) = report.findings
        assert (finding.severity, finding.code) == ("error", "thread_off_plan")
        for fact in (f"thread {tid} (worker)", f"process {running.pid}", f"CPUs {OTHER}", f"planned are {ONE}"):
            assert fact in finding.message
        assert f"--pid {running.pid}" in finding.remedy
        assert masks(running.pid)[tid] == (OTHER,)  # looking changes nothing
        os.sched_setaffinity(tid, {ONE})
        assert verify(running.pid, Target((ONE,))).ok


@two_cpus
def test_a_driver_thread_on_the_cpus_of_the_others_is_off_the_plan() -> None:
    with child() as running:
        apply(running.pid, Target((ONE,)))
        running.thread("acl_thread")
        report = verify(running.pid, Target((ONE,), {"acl_thread": (OTHER,)}))
        assert [finding.code for finding in report.findings] == ["thread_off_plan"]


@two_cpus
def test_many_threads_off_the_plan_do_not_make_as_many_findings() -> None:
    with child() as running:
        for number in range(30):
            running.thread(f"worker{number}")
        report = verify(running.pid, Target((ONE,)))
        assert len(report.findings) == 17
        assert "15 more threads" in report.findings[-1].message


@numa
def test_a_program_started_bound_has_the_policy_and_the_pages_of_its_plan() -> None:
    # The policy survives execve, so that all the memory of the second program comes from its node.
    code = (
        "import os, sys; from homenode.host.bind.base.syscalls import *; Syscalls().set_mempolicy(MPOL_BIND, (0,)); "
        "os.execv(sys.executable, [sys.executable, '-S', '-c', 'print(flush=True); input()'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"\n"
        target = Target(CPUS, memory_nodes=(0,))
        assert " bind:0 " in Path(f"/proc/{process.pid}/numa_maps").read_text()
        report = verify(process.pid, target, policy_expected=True)
        assert report.ok and report.findings == ()
        assert [(step.what, step.outcome) for step in report.steps] == [
            ("affinity", "done"),
            ("memory policy", "done"),
            ("pages", "done"),
        ]
        assert next(step.detail for step in report.steps if step.what == "memory policy") == "bind:0"
    finally:
        process.communicate(b"\n", timeout=10)


@numa
def test_the_default_policy_is_accepted_unless_the_process_was_started_bound() -> None:
    with child() as running:
        target = Target(CPUS, memory_nodes=parse_cpu_list(Path("/sys/devices/system/node/has_memory").read_text()))
        assert verify(running.pid, target).findings == ()
        (finding,) = verify(running.pid, target, policy_expected=True).findings
        assert (finding.severity, finding.code) == ("error", "policy_off_plan")
        assert "homenode run" in finding.remedy


def memory(policy: Policy, pages: dict[int, int]) -> MemoryMap:
    return MemoryMap(
        (
            Range(0x1000, 0x2000, "private", Placement(policy, pages)),
            Range(0x9000, 0xA000, "shared", Placement(policy, {7: 999})),
        ),
        policy,
    )


@pytest.mark.parametrize(
    ("policy", "pages", "codes"),
    [
        (Policy("bind", (0, 1)), {0: 60, 1: 40}, []),
        (Policy("bind", (1,)), {1: 100}, []),
        (Policy("default"), {0: 96, 2: 4}, []),
        (Policy("default"), {0: 94, 2: 6}, ["pages_off_plan"]),
        (Policy("bind", (2,)), {0: 100}, ["policy_off_plan"]),
        (Policy("interleave", (0, 1, 2)), {0: 50, 1: 50}, ["policy_off_plan"]),
        (Policy("prefer", (3,)), {3: 100}, ["policy_off_plan", "pages_off_plan"]),
        (Policy("default"), {}, []),
    ],
)
def test_policies_and_homes_on_many_nodes(
    monkeypatch: pytest.MonkeyPatch, policy: Policy, pages: dict[int, int], codes: list[str]
) -> None:
    monkeypatch.setattr(verify_module, "read_memory_map", lambda pid: memory(policy, pages))
    monkeypatch.setattr(verify_module, "check_running", lambda target: None)
    report = verify(os.getpid(), Target(CPUS, memory_nodes=(0, 1)))
    assert [finding.code for finding in report.findings if finding.code != "thread_off_plan"] == codes


def test_what_pages_lie_off_the_plan_is_told_with_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "read_memory_map", lambda pid: memory(Policy("default"), {0: 256, 2: 768}))
    monkeypatch.setattr(verify_module, "check_running", lambda target: None)
    report = verify(os.getpid(), Target((), memory_nodes=(0,)))
    assert not report.ok
    assert "25%" in report.findings[0].message and "node 0: 1MiB, node 2: 3MiB" in report.findings[0].message


def test_further_readers_are_part_of_the_report() -> None:
    irq = Report(
        (ActionResult("irq 27", "failed"),),
        (Finding("error", "irq_off_plan", "irq 27 goes to CPU 5", "route it again"),),
    )
    report = verify(os.getpid(), Target(()), readers=[lambda: irq])
    assert not report.ok and report.findings == irq.findings
    assert report.steps[-1] == irq.steps[0]


def test_processes_cpus_and_nodes_that_are_not_there_are_named() -> None:
    with pytest.raises(UserError, match="no process 4194303"):
        verify(4194303, Target((ONE,)))
    with pytest.raises(UserError, match="4095"):
        verify(os.getpid(), Target((4095,)))
    with pytest.raises(UserError, match="NUMA node 977"):
        verify(os.getpid(), Target((ONE,), memory_nodes=(977,)))
