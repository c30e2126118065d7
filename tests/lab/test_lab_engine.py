"""Our own engine on one node of several: its weights and its KV memory lie there, and no more is taken than the node
has.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homenode.cpuset import parse_cpu_list
from tests.engine.live import LiveServer
from tests.host.children import masks
from tests.lab.machine import WHOLE, Done, command, homenode, several_nodes, start, status
from tests.lab.residency import bytes_by_node, largest_private, move, places, ranges_of

pytestmark = several_nodes
KV, AWAY, SLACK = 32 << 20, 8 << 20, 1 << 20
GOLDEN: list[dict[str, Any]] = json.loads(Path(__file__).with_name("golden_builtin.json").read_text(encoding="utf-8"))


def engine_of(front: int) -> int:
    """The engine's process, a child of the front's."""
    children = Path(f"/proc/{front}/task/{front}/children").read_text().split()
    return next(int(pid) for pid in children if b"homenode.engine" in Path(f"/proc/{pid}/cmdline").read_bytes())


def steps(done: Done) -> dict[str, str]:
    """What `verify` looked at and what came of it."""
    return {step["what"]: step["outcome"] for step in done.json["steps"]}


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    pytest.importorskip("homenode._native", reason="needs the compiled core")
    running = LiveServer(
        "--numa-bind",
        "--numa-bind-nodes",
        str(WHOLE[-1].id),
        "--kv-cache-memory",
        str(KV),
        "--kv-cache-prealloc",
        "--quantize",
        "q8_0",
    )
    yield running
    running.close()


def test_weights_and_kv_memory_lie_on_the_node(server: LiveServer) -> None:
    node = WHOLE[-1]
    engine = engine_of(server.process.pid)
    held = bytes_by_node(ranges_of(engine))
    assert held[node.id] >= KV
    assert held[node.id] >= 0.99 * held.total(), held
    assert all(set(cpus) <= set(node.cpus) for cpus in masks(engine).values())
    found = homenode("verify", "--pid", engine, "--memory-nodes", node.id, "--started-bound", "--json")
    assert {what: outcome for what, outcome in steps(found).items() if what != "affinity"} == {
        "memory policy": "done",
        "pages": "done",
    }


def test_the_front_is_not_bound_by_it(server: LiveServer) -> None:
    assert set(parse_cpu_list(status(server.process.pid, "Cpus_allowed_list"))) == os.sched_getaffinity(0)


def said_to(server: LiveServer, case: dict[str, Any]) -> str:
    words = {"model": "live", "prompt": case["prompt_ids"], "max_tokens": len(case["q8_0_ids"]), "temperature": 0}
    request = urllib.request.Request(
        f"{server.url}/v1/completions", json.dumps(words).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        text: str = json.load(answer)["choices"][0]["text"]
    return text


def test_it_says_the_golden_text(server: LiveServer) -> None:
    assert [said_to(server, case) for case in GOLDEN[:3]] == [case["q8_0_text"] for case in GOLDEN[:3]]


def test_pages_moved_away_from_under_it_are_seen_and_change_no_word(server: LiveServer) -> None:
    node, other = WHOLE[-1], WHOLE[0]
    engine = engine_of(server.process.pid)
    before = bytes_by_node(ranges_of(engine))
    start_of, size = largest_private(engine)
    block = (start_of, min(size, AWAY))
    assert size >= AWAY and places(engine, *block) == {node.id}
    move(engine, block, other.id)
    after = bytes_by_node(ranges_of(engine))
    assert after[other.id] - before[other.id] >= AWAY and after[node.id] <= before[node.id] - AWAY + SLACK
    found = homenode("verify", "--pid", engine, "--memory-nodes", node.id, "--started-bound", "--json")
    assert found.code == 1 and steps(found)["pages"] == "failed"
    assert said_to(server, GOLDEN[0]) == GOLDEN[0]["q8_0_text"]
    move(engine, block, node.id)
    assert (
        steps(homenode("verify", "--pid", engine, "--memory-nodes", node.id, "--started-bound", "--json"))["pages"]
        == "done"
    )


def test_kv_memory_that_the_node_does_not_have_is_refused_before_the_kernel_ends_the_engine() -> None:
    pytest.importorskip("homenode._native", reason="needs the compiled core")
    node = WHOLE[-1]
    flags = ("serve", "--check-config", "--kv-cache-memory", node.memory)
    said = f"memory is bound to NUMA node {node.id}"
    bound = homenode(*flags, "--numa-bind", "--numa-bind-nodes", node.id)
    assert bound.code == 2 and said in " ".join(bound.err.split())
    outside = start(*flags, before=command("run", "--cpus", node.cpu_list, "--memory-nodes", node.id, "--"))
    assert outside.code == 2 and said in " ".join(outside.err.split())
