"""Programs run bound on machines of several nodes: the kernel says of every page where it lies."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.host.children import Child, child
from tests.lab.machine import (
    BARE,
    EMPTY,
    WHOLE,
    Node,
    command,
    homenode,
    own_machine,
    policies,
    several_nodes,
    start,
    status,
)
from tests.lab.residency import bytes_by_node, places, ranges_of

pytestmark = several_nodes
SIZE = 32 << 20
SHOW = (
    sys.executable,
    "-S",
    "-c",
    "print(open('/proc/self/status').read(), open('/proc/self/numa_maps').read(), sep='numa_maps')",
)


def numa_maps(running: Child) -> str:
    return Path(f"/proc/{running.pid}/numa_maps").read_text()


def own_bytes(running: Child) -> Counter[int]:
    return bytes_by_node(ranges_of(running.pid))


def shown(out: str) -> tuple[str, set[str]]:
    """CPUs and policies of the program SHOW."""
    told, _, maps = out.partition("numa_maps")
    return next(line.split("\t")[1] for line in told.splitlines() if line.startswith("Cpus_allowed_list")), policies(
        maps
    )


@pytest.mark.parametrize("node", WHOLE[:1] + WHOLE[-1:], ids=lambda node: f"node{node.id}")
def test_every_page_of_the_program_lies_on_its_node(node: Node) -> None:
    with child(*command("run", "--cpus", node.cpu_list, "--memory-nodes", node.id, "--")) as running:
        block = int(running.tell("private", SIZE))
        assert status(running.pid, "Cpus_allowed_list") == node.cpu_list
        assert places(running.pid, block, SIZE) == {node.id}
        maps = numa_maps(running)
        assert policies(maps) == {f"bind:{node.id}"}
        assert set(own_bytes(running)) == {node.id} and own_bytes(running)[node.id] >= SIZE
        found = homenode(
            "verify",
            "--pid",
            running.pid,
            "--cpus",
            node.cpu_list,
            "--memory-nodes",
            node.id,
            "--started-bound",
            "--json",
        )
        assert (found.code, found.json["findings"]) == (0, [])


@pytest.mark.parametrize("memory", [WHOLE[0], *BARE][-2:], ids=lambda node: f"node{node.id}")
def test_memory_may_come_from_another_node_than_the_cpus(memory: Node) -> None:
    """From the memory of a node without CPUs too."""
    cpus = WHOLE[-1].cpu_list
    with child(*command("run", "--cpus", cpus, "--memory-nodes", memory.id, "--")) as running:
        block = int(running.tell("private", SIZE))
        assert status(running.pid, "Cpus_allowed_list") == cpus
        assert places(running.pid, block, SIZE) == {memory.id}
        assert set(own_bytes(running)) == {memory.id}


def test_of_several_nodes_none_other_is_used() -> None:
    first, *_, last = WHOLE
    nodes = f"{first.id},{last.id}"
    with child(*command("run", "--cpus", last.cpu_list, "--memory-nodes", nodes, "--")) as running:
        running.tell("private", SIZE)
        assert set(own_bytes(running)) <= {first.id, last.id}
        (policy,) = policies(numa_maps(running))
        assert policy in (f"bind:{nodes}", f"bind:{first.id}-{last.id}")


def test_neither_cpus_nor_memory_escape_what_was_inherited() -> None:
    inner, outer = WHOLE[0], WHOLE[-1]
    before = command("run", "--cpus", outer.cpu_list, "--memory-nodes", outer.id, "--")
    refused = start("run", "--cpus", inner.cpu_list, "--", "true", before=before)
    assert refused.code == 2 and "inherited" in refused.err
    kept = start("run", "--cpus", outer.cpu_list, "--memory-nodes", inner.id, "--", *SHOW, before=before)
    assert shown(kept.out) == (outer.cpu_list, {f"bind:{outer.id}"})
    assert f"node {inner.id} is outside it" in kept.err
    strict = start("run", "--strict", "--cpus", outer.cpu_list, "--memory-nodes", inner.id, "--", *SHOW, before=before)
    assert (strict.code, strict.out) == (1, "")


@pytest.mark.skipif(not EMPTY, reason="needs a node with CPUs and without memory")
@pytest.mark.parametrize("flags", [(), ("--strict",)], ids=["plain", "strict"])
def test_a_node_without_memory_is_refused(flags: tuple[str, ...]) -> None:
    empty, cpus = EMPTY[0].id, EMPTY[0].cpu_list
    for nodes in (str(empty), f"{WHOLE[0].id},{empty}"):
        done = start("run", *flags, "--cpus", cpus, "--memory-nodes", nodes, "--", *SHOW)
        assert (done.code, done.out) == (2, "") and f"node {empty} has no memory" in done.err


@pytest.mark.skipif(not EMPTY, reason="needs a node with CPUs and without memory")
def test_a_node_without_memory_is_refused_for_running_processes() -> None:
    empty, cpus = EMPTY[0].id, EMPTY[0].cpu_list
    with child() as running:
        for verb in ("bind", "verify"):
            done = homenode(verb, "--pid", running.pid, "--cpus", cpus, "--memory-nodes", empty)
            assert done.code == 2 and f"node {empty} has no memory" in done.err


@pytest.mark.skipif(not EMPTY, reason="needs a node with CPUs and without memory")
def test_a_plan_gives_a_node_without_memory_that_of_the_nearest() -> None:
    empty = EMPTY[0]
    done = start("run", "--numa-bind", "--numa-bind-nodes", empty.id, "--", *SHOW)
    cpus, (policy,) = shown(done.out)
    assert (done.code, cpus) == (0, empty.cpu_list)
    assert policy in {f"bind:{node.id}" for node in WHOLE}
    assert f"comes from node {policy[5:]}" in done.err


def test_numa_bind_takes_cpus_and_memory_of_the_nodes_given() -> None:
    first, last = WHOLE[0], WHOLE[-1]
    flags = ("--numa-bind", "--numa-bind-nodes", last.id, first.id, "--workers", 2)
    workers = homenode("plan", *flags, "--json").json["workers"]
    assert [(worker["cpus"], worker["memory_node"]) for worker in workers] == [
        (last.cpu_list, last.id),
        (first.cpu_list, first.id),
    ]
    for rank, node in enumerate((last, first)):
        done = start("run", *flags, "--local-rank", rank, "--", *SHOW)
        assert (done.code, shown(done.out)) == (0, (node.cpu_list, {f"bind:{node.id}"})), done.err


def test_numa_bind_cpus_narrow_a_node() -> None:
    last = WHOLE[-1]
    one = str(last.cpus[-1])
    done = start("run", "--numa-bind", "--numa-bind-nodes", last.id, "--numa-bind-cpus", one, "--", *SHOW)
    assert (done.code, shown(done.out)) == (0, (one, {f"bind:{last.id}"})), done.err


def test_cpu_threads_puts_each_rank_on_a_node_of_its_own() -> None:
    with_memory = sorted([*WHOLE, *BARE], key=lambda node: node.id)
    flags = ("--cpu-threads-bind", "auto", "--workers", len(WHOLE), "--reserve-cpus", 0)
    workers = homenode("plan", *flags, "--json").json["workers"]
    assert (
        {worker["memory_node"] for worker in workers}
        == {node.id for node in WHOLE}
        <= {node.id for node in with_memory}
    )
    rank, plan = max(enumerate(workers))
    done = start("run", *flags, "--local-rank", rank, "--", *SHOW)
    assert (done.code, shown(done.out)) == (0, (plan["cpus"], {f"bind:{plan['memory_node']}"})), done.err


@own_machine
def test_memory_beyond_the_node_is_not_taken_from_another_one() -> None:
    """The policy is a binding: the kernel ends the program rather than to give it memory of another node."""
    node = WHOLE[-1]
    if node.memory > 2 << 30:
        pytest.skip(f"node {node.id} has {node.memory >> 20} MiB; filling it would take long")
    with child(*command("run", "--cpus", node.cpu_list, "--memory-nodes", node.id, "--")) as running:
        assert running.tell("fill", node.memory + node.memory // 20) == ""  # ended before it could answer
