"""`homenode serve --numa P` on machines of several nodes: the same tokens under every policy, and every page where the policy puts it.

The test counts pages itself, in numa_maps of the engines, and sees the metric fall and `homenode verify` fail once it has moved some away.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import re
import time
import urllib.request
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.engine.live import LiveServer
from tests.host.children import child, eventually
from tests.lab.heavy import MATRIX_BYTES, PROMPTS, make_heavy
from tests.lab.machine import BARE, EMPTY, WHOLE, cpuset, homenode, own_machine, several_nodes, start
from tests.lab.residency import PAGE, PlacedMemory, move, nodes_of, placed_memory, ranges_of

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = several_nodes
KV, TOKENS, SLACK = 4 << 20, 6, 0.02
AWAY = 256 << 10
_LOOK_S = 60.0
_THP_DISABLE = 41  # prctl(2): programs started from here on have small pages only, of which no unused rest is ever counted
COPIES = {"local": 1, "shard": 1, "mirror": len(WHOLE), "interleave": 1, "replicate": len(WHOLE) + len(EMPTY)}


@pytest.fixture(autouse=True)
def small_pages(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And a state folder of their own: `verify` reads there what the engines have left."""
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path_factory.mktemp("state")))
    libc = ctypes.CDLL(None)
    libc.prctl(_THP_DISABLE, 1, 0, 0, 0)
    yield
    libc.prctl(_THP_DISABLE, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_heavy(tmp_path_factory.mktemp("model") / "heavy.gguf")


@cache
def alone(model: Path) -> list[list[int]]:
    """What one thread says, of a server that was told nothing of nodes."""
    with serving(model, "--threads", "1") as server:
        return said(server)


@contextlib.contextmanager
def serving(model: Path, *flags: object, before: Sequence[str] = ()) -> Iterator[LiveServer]:
    server = LiveServer(*map(str, ("--kv-cache-memory", KV, "--max-num-batched-tokens", 64, *flags)), model=model, before=before)
    try:
        yield server
    finally:
        code = server.close()
    assert (code, b"Traceback" in b"".join(server.log)) == (0, False), b"".join(server.log).decode()[-3000:]


def said(server: LiveServer) -> list[list[int]]:
    """The tokens that follow each prompt."""
    found = []
    for prompt in PROMPTS:
        words = {"model": "live", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(words).encode(), {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=240) as answer:
            found.append(json.load(answer)["choices"][0]["token_ids"])
    return found


def engines(server: LiveServer) -> list[int]:
    found = []
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        for pid in (task / "children").read_text().split():
            if b"homenode.engine" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(int(pid))
    return sorted(found)


def memory_of(server: LiveServer) -> list[PlacedMemory]:
    return [placed_memory(pid) for pid in engines(server)]


def ratios(server: LiveServer) -> list[float]:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=240) as answer:
        text = answer.read().decode()
    return [float(value) for value in re.findall(r"^homenode:numa_pages_local_ratio\{.*\} (\S+)$", text, re.MULTILINE)]


def verified(server: LiveServer) -> tuple[int, list[str]]:
    done = homenode("verify", "--pid", server.process.pid, "--json")
    assert done.code in (0, 1), done.err
    return done.code, [finding["code"] for finding in done.json["findings"]]


@pytest.mark.parametrize("policy", COPIES)
def test_every_policy_says_the_same_with_every_page_at_home(model: Path, policy: str) -> None:
    with serving(model, "--numa", policy) as server:
        assert said(server) == alone(model)
        found = memory_of(server)
        assert len(found) == (COPIES[policy] if policy == "replicate" else 1)
        assert sum(one.remote for one in found) == 0, found
        wanted = COPIES[policy] * MATRIX_BYTES + len(found) * KV
        total = sum(one.total for one in found)
        assert wanted <= total <= (1 + SLACK) * wanted + rounding(found), (total, wanted)
        assert check_share(policy, found)
        assert ratios(server) and set(ratios(server)) == {1.0}
        assert verified(server) == (0, [])


def rounding(found: Sequence[PlacedMemory]) -> int:
    """A page for each end of each range: there is at least one for each node of an engine."""
    return PAGE * 2 * sum(len(one.found) for one in found)


def check_share(policy: str, found: Sequence[PlacedMemory]) -> bool:
    """What each node holds, as the policy has it."""
    held = {node.id: sum(one.on(node.id) for one in found) for node in (*WHOLE, *BARE)}
    near = [held[node.id] for node in WHOLE]
    if policy == "local":
        return sum(size > 0 for size in held.values()) == 1
    if policy in ("shard", "interleave"):
        return max(near) < 0.75 * sum(held.values()) and min(near) > 0
    return min(near) >= MATRIX_BYTES


def test_auto_serves_as_well(model: Path) -> None:
    with serving(model, "--numa", "auto") as server:
        assert said(server) == alone(model)
        assert sum(one.remote for one in memory_of(server)) == 0
        assert verified(server) == (0, [])


def of_weights(pid: int, node: int) -> tuple[int, int]:
    """Pages of a range that was planned for a node, present there: the first ones of the largest."""
    part = max((part for part in ranges_of(pid) if part.policy == f"prefer:{node}"), key=lambda part: part.present)
    assert set(nodes_of(pid, (part.start, AWAY))) == {node}
    return part.start, AWAY


@pytest.mark.parametrize("policy", ["shard", "mirror"])
def test_pages_moved_away_are_missed_by_metric_and_verify_and_change_no_word(model: Path, policy: str) -> None:
    home, other = WHOLE[-1].id, WHOLE[0].id
    with serving(model, "--numa", policy) as server:
        (engine,) = engines(server)
        block = of_weights(engine, home)
        move(engine, block, other)
        assert placed_memory(engine).remote == AWAY
        assert verified(server) == (1, ["pages_off_plan"])
        deadline = time.monotonic() + _LOOK_S
        while min(ratios(server)) == 1.0:  # a sample that is at most some seconds old, sent on with the next answer
            assert time.monotonic() < deadline, "the metric has not seen it"
            assert said(server) == alone(model)
        move(engine, block, home)
        assert verified(server) == (0, [])


@own_machine
def test_a_cpu_that_goes_offline_while_serving_is_drift_and_answers_go_on(model: Path) -> None:
    gone = WHOLE[-1].cpus[-1]
    switch = Path(f"/sys/devices/system/cpu/cpu{gone}/online")
    if len(WHOLE[-1].cpus) < 2 or not switch.exists():
        pytest.skip(f"CPU {gone} is the only one of its node, or cannot be taken offline")
    with serving(model, "--numa", "shard", "--reserve-cpus", 0) as server:
        assert verified(server) == (0, [])
        try:
            switch.write_text("0")
            assert said(server) == alone(model)
            assert verified(server) == (1, ["thread_off_plan"])
        finally:
            switch.write_text("1")
        assert said(server) == alone(model)


@own_machine
def test_a_node_that_the_cpuset_excludes_holds_nothing(model: Path) -> None:
    """Its CPUs may compute; their weights come from a node whose memory is allowed."""
    allowed = WHOLE[0].id
    cpus = [cpu for node in WHOLE for cpu in node.cpus]
    with cpuset(cpus, [allowed]) as inside, serving(model, "--numa", "shard", before=inside) as server:
        assert said(server) == alone(model)
        (found,) = memory_of(server)
        assert (found.remote, found.on(allowed)) == (0, found.total) and found.total >= MATRIX_BYTES
        assert verified(server) == (0, [])


def strict(model: Path, *flags: object) -> Any:
    return homenode("serve", model, "--numa", "shard", "--numa-strict", "--check-config", "--kv-cache-memory", KV, *flags)


def test_strict_refuses_where_one_node_would_compute(model: Path) -> None:
    done = strict(model, "--numa-nodes", WHOLE[-1].id)
    assert done.code == 2 and "--numa shard needs several nodes" in " ".join(done.err.split())
    assert strict(model).code == 0


def free(node: int) -> int:
    """Bytes of a node that nobody has."""
    found = re.search(r"MemFree: +(\d+) kB", Path(f"/sys/devices/system/node/node{node}/meminfo").read_text())
    assert found
    return int(found[1]) << 10


@contextlib.contextmanager
def filled(node: int, left: int) -> Iterator[int]:
    """Another program holds memory of a node until about `left` bytes are free; how much is."""
    if free(node) > 2 << 30:
        pytest.skip(f"node {node} has {free(node) >> 20} MiB free; filling it would take long")
    Path("/proc/sys/vm/drop_caches").write_text("3")
    with child() as other:
        other.tell("placed", (free(node) - left) // PAGE * PAGE, node)
        yield free(node)


@own_machine
@pytest.mark.parametrize("policy", ["shard", "mirror", "replicate"])
def test_a_full_node_is_named_with_what_was_wanted_and_what_is_free(model: Path, policy: str) -> None:
    full, other = WHOLE[-1].id, WHOLE[0].id
    with filled(full, 8 << 20):
        Path("/proc/sys/vm/drop_caches").write_text("3")
        before = free(other)
        done = start("serve", model, "--port", 0, "--numa", policy, "--kv-cache-memory", KV, "--max-num-batched-tokens", 64)
        told = " ".join(done.err.split())
        assert done.code == 2 and re.search(rf"node {full} under --numa {policy}", told), told
        assert re.search(rf"free: \S+ on node {full}", told) and re.search(rf"wanted: \S+ on node {full}", told), told
        assert "--numa local" in told  # what fits
        Path("/proc/sys/vm/drop_caches").write_text("3")
        assert eventually(lambda: free(other) > before - (8 << 20)), "what had been taken of another node was not given back"


@own_machine
def test_kv_memory_that_spills_over_is_told_and_under_strict_not_served(model: Path) -> None:
    full = WHOLE[-1].id
    left, kv = MATRIX_BYTES // len(WHOLE) + (48 << 20), 64 * len(WHOLE) << 20
    with filled(full, left):
        flags = ("serve", model, "--port", 0, "--numa", "shard", "--numa-strict", "--kv-cache-memory", kv, "--max-num-batched-tokens", 64)
        done = start(*flags)
    told = " ".join(done.err.split())
    assert done.code != 0 and f"planned for NUMA node {full}" in told and "lie elsewhere" in told, told
