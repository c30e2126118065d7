"""Real pages moved between real nodes; needs a machine (or a guest) with two of them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.host.bind.apply import apply
from homenode.host.bind.base.report import Report
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.base.target import Target
from homenode.host.bind.memory.memory_map import read_memory_map
from homenode.host.bind.memory.pages import move_private_pages
from homenode.host.bind.verify import verify
from tests.host.children import Child, child, cpuset

PAGE = os.sysconf("SC_PAGE_SIZE")
SIZE = 8 << 20


def nodes_with_both() -> dict[int, tuple[int, ...]]:
    """CPUs of the nodes that have memory, and CPUs that this process may use."""
    found = {}
    for folder in Path("/sys/devices/system/node").glob("node[0-9]*"):
        cpus = set(parse_cpu_list((folder / "cpulist").read_text())) & os.sched_getaffinity(0)
        if cpus and "MemTotal:        0 kB" not in (folder / "meminfo").read_text():
            found[int(folder.name[4:])] = tuple(sorted(cpus))
    return dict(sorted(found.items()))


NODES = nodes_with_both()
pytestmark = pytest.mark.skipif(
    len(NODES) < 2, reason=f"needs two NUMA nodes with memory and CPUs, here are {sorted(NODES)}"
)


def places(running: Child, address: int, size: int = SIZE) -> set[int]:
    return set(Syscalls().move_pages(running.pid, range(address, address + size, PAGE), None))


def huge(running: Child) -> bool:
    return re.search(rf"AnonHugePages: +{SIZE // 1024} kB", Path(f"/proc/{running.pid}/smaps").read_text()) is not None


def step(report: Report, what: str) -> str:
    return next(f"{step.outcome}: {step.detail}" for step in report.steps if step.what == what)


def test_private_pages_follow_the_binding_and_shared_ones_stay() -> None:
    (here, here_cpus), (there, there_cpus) = list(NODES.items())[:2]
    with child() as running:
        apply(running.pid, Target(here_cpus, memory_nodes=(here,)))
        own, table = int(running.tell("private", SIZE)), int(running.tell("memfd", SIZE))
        assert places(running, own) == places(running, table) == {here}
        report = apply(running.pid, Target(there_cpus, memory_nodes=(there,)))
        assert report.ok and not report.findings, step(report, "pages")
        assert step(report, "pages").startswith("done: ") and "8MiB in shared mappings" in step(report, "pages")
        assert places(running, own) == {there}
        assert places(running, table) == {here}
        memory = read_memory_map(running.pid)
        assert memory is not None and set(memory.bytes_by_node()) == {there}
        assert verify(running.pid, Target(there_cpus, memory_nodes=(there,))).findings == ()
        drifted = verify(running.pid, Target(there_cpus, memory_nodes=(here,)))
        assert [finding.code for finding in drifted.findings] == ["pages_off_plan"]


def test_transparent_huge_pages_move_whole() -> None:
    (here, here_cpus), (there, there_cpus) = list(NODES.items())[:2]
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("no transparent huge pages here")
    with child() as running:
        apply(running.pid, Target(here_cpus, memory_nodes=(here,)))
        own = int(running.tell("huge", SIZE))
        if not huge(running):
            pytest.skip("the kernel had no huge pages to give")
        assert places(running, own) == {here}
        report = apply(running.pid, Target(there_cpus, memory_nodes=(there,)))
        assert report.ok and not report.findings, step(report, "pages")
        assert places(running, own) == {there}
        assert huge(running)


def test_pages_that_a_forked_process_shares_stay_and_are_counted() -> None:
    (here, here_cpus), (there, there_cpus) = list(NODES.items())[:2]
    with child() as running:
        apply(running.pid, Target(here_cpus, memory_nodes=(here,)))
        own = int(running.tell("private", SIZE))
        running.tell("fork")
        report = apply(running.pid, Target(there_cpus, memory_nodes=(there,)))
        assert places(running, own) == {here}
        assert [finding.code for finding in report.findings] == ["pages_not_moved"]
        assert "shared with other processes" in step(report, "pages")


def test_a_range_that_the_program_placed_itself_stays() -> None:
    (here, here_cpus), (there, there_cpus) = list(NODES.items())[:2]
    with child() as running:
        apply(running.pid, Target(here_cpus, memory_nodes=(here,)))
        own = int(running.tell("placed", SIZE, here))
        assert places(running, own) == {here}
        report = apply(running.pid, Target(there_cpus, memory_nodes=(there,)))
        assert report.ok and "8MiB placed by a policy of its own" in step(report, "pages")
        assert places(running, own) == {here}


def test_a_node_that_the_cpuset_forbids_is_named_and_takes_nothing() -> None:
    (here, here_cpus), (there, there_cpus) = list(NODES.items())[:2]
    with cpuset(format_cpu_list(here_cpus + there_cpus), str(here)) as entrance, child() as running:
        entrance.write_text(str(running.pid))
        own = int(running.tell("private", SIZE))
        assert places(running, own) == {here}
        report = apply(running.pid, Target(there_cpus, memory_nodes=(there,)))
        assert [finding.code for finding in report.findings] == ["memory_node_not_allowed"]
        assert f"nodes {here} only" in report.findings[0].message
        assert places(running, own) == {here}
        memory = read_memory_map(running.pid)
        assert memory is not None  # asked all the same, the kernel refuses as well
        assert move_private_pages(running.pid, memory, [there], Syscalls()).stopped.startswith("EACCES")


def test_a_full_node_is_said_to_be_full() -> None:
    (_, here_cpus), (there, there_cpus) = list(NODES.items())[:2]
    text = (Path("/sys/devices/system/node") / f"node{there}/meminfo").read_text()
    total = int(next(line for line in text.splitlines() if "MemTotal" in line).split()[-2]) * 1024
    if total > 2 << 30:
        pytest.skip(f"node {there} has {total >> 20} MiB; filling it would take long and hurt others")
    with child() as running:
        apply(running.pid, Target(here_cpus + there_cpus))
        assert running.tell("fill", total + total // 20).isdecimal()  # more than the node holds
        report = apply(running.pid, Target(there_cpus, memory_nodes=(there,)))
        assert [finding.code for finding in report.findings] == ["pages_not_moved"]
        assert "no free memory on the node" in step(report, "pages")
