"""Our own engine on one node of several: its weights and its KV memory lie there, and no more is taken than the node has."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from homenode.cpuset import parse_cpu_list
from tests.engine.live import LiveServer
from tests.host.children import masks
from tests.lab.machine import PAGE, WHOLE, command, homenode, homes, several_nodes, start, status

pytestmark = several_nodes
KV = 32 << 20


def engine_of(front: int) -> int:
    """The engine's process, a child of the front's."""
    children = Path(f"/proc/{front}/task/{front}/children").read_text().split()
    return next(int(pid) for pid in children if b"homenode.engine" in Path(f"/proc/{pid}/cmdline").read_bytes())


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    pytest.importorskip("homenode._native", reason="needs the compiled core")
    running = LiveServer("--numa-bind", "--numa-bind-nodes", str(WHOLE[-1].id), "--kv-cache-memory", str(KV))
    yield running
    running.close()


def test_weights_and_kv_memory_lie_on_the_node(server: LiveServer) -> None:
    node = WHOLE[-1]
    engine = engine_of(server.process.pid)
    pages = homes(Path(f"/proc/{engine}/numa_maps").read_text())
    assert pages[node.id] >= KV // PAGE
    assert pages[node.id] >= 0.99 * pages.total(), pages
    assert all(set(cpus) <= set(node.cpus) for cpus in masks(engine).values())
    found = homenode("verify", "--pid", engine, "--memory-nodes", node.id, "--started-bound", "--json")
    assert {step["what"]: step["outcome"] for step in found.json["steps"] if step["what"] != "affinity"} == {
        "memory policy": "done",
        "pages": "done",
    }


def test_the_front_is_not_bound_by_it(server: LiveServer) -> None:
    assert set(parse_cpu_list(status(server.process.pid, "Cpus_allowed_list"))) == os.sched_getaffinity(0)


def test_it_answers(server: LiveServer) -> None:
    words = json.dumps({"model": "live", "prompt": "The capital of France is", "max_tokens": 4}).encode()
    request = urllib.request.Request(f"{server.url}/v1/completions", words, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        assert json.load(answer)["choices"][0]["text"]


def test_kv_memory_that_the_node_does_not_have_is_refused_before_the_kernel_ends_the_engine() -> None:
    pytest.importorskip("homenode._native", reason="needs the compiled core")
    node = WHOLE[-1]
    flags = ("serve", "--check-config", "--kv-cache-memory", node.memory)
    said = f"memory is bound to NUMA node {node.id}"
    bound = homenode(*flags, "--numa-bind", "--numa-bind-nodes", node.id)
    assert bound.code == 2 and said in " ".join(bound.err.split())
    outside = start(*flags, before=command("run", "--cpus", node.cpu_list, "--memory-nodes", node.id, "--"))
    assert outside.code == 2 and said in " ".join(outside.err.split())
