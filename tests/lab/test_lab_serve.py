"""`homenode serve --numa P` on machines of several nodes: the same tokens under every policy, and every page where the
policy puts it.

The test counts pages itself, in numa_maps of the engines, and sees the metric fall and `homenode verify` fail once it
has moved some away. Servers take long to start on emulated processors, so much is asked of each.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.engine.live import LiveServer
from tests.lab.heavy import MATRIX_BYTES, PROMPTS, SAID, make_heavy
from tests.lab.machine import BARE, EMPTY, WHOLE, cpuset, homenode, own_machine, several_nodes
from tests.lab.residency import PAGE, PlacedMemory, move, nodes_of, placed_memory, ranges_of

pytest.importorskip("homenode._native", reason="needs the compiled core")
pytestmark = several_nodes
KV, SLACK = 4 << 20, 0.02
AWAY = 256 << 10
FLAGS = ("--kv-cache-memory", KV, "--max-num-batched-tokens", 64)
_LOOK_S = 120.0
COPIES = {"shard": 1, "mirror": len(WHOLE), "replicate": len(WHOLE) + len(EMPTY)}  # the others: test_lab_golden.py


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`verify` reads there what the engines have left."""
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_heavy(tmp_path_factory.mktemp("model") / "heavy.gguf")


@contextlib.contextmanager
def serving(model: Path, *flags: object, before: Sequence[str] = ()) -> Iterator[LiveServer]:
    server = LiveServer(*map(str, (*FLAGS, *flags)), model=model, before=before)
    try:
        yield server
    finally:
        code = server.close()
    assert (code, b"Traceback" in b"".join(server.log)) == (0, False), b"".join(server.log).decode()[-3000:]


def said(server: LiveServer, prompts: int = 1) -> list[list[int]]:
    """The tokens that follow each of the first prompts."""
    found = []
    for prompt in PROMPTS[:prompts]:
        words = {
            "model": "live",
            "prompt": prompt,
            "max_tokens": len(SAID[0]),
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"{server.url}/v1/completions", json.dumps(words).encode(), {"content-type": "application/json"}
        )
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
    with serving(model, "--numa", policy, "--reserve-cpus", 0) as server:
        assert said(server, 2) == list(SAID)
        found = memory_of(server)
        assert len(found) == (COPIES[policy] if policy == "replicate" else 1)
        assert sum(one.remote for one in found) == 0, found
        wanted, others = COPIES[policy] * MATRIX_BYTES, len(found) * KV + scratch_bytes()
        total = sum(one.total for one in found)
        assert wanted <= total <= (1 + SLACK) * wanted + others + rounding(found), (total, wanted, others)
        check_share(policy, found)
        assert ratios(server) and set(ratios(server)) == {1.0}
        assert verified(server) == (0, [])
        if policy in ("shard", "mirror"):
            check_drift(server)
        if policy == "shard" and "HOMENODE_LAB" in os.environ:
            check_offline(server)


def scratch_bytes() -> int:
    """What the engines say that their threads have for themselves."""
    plans = [json.loads(file.read_text()) for file in Path(os.environ["HOMENODE_STATE_DIR"]).glob("**/*.json")]
    return sum(part["size"] for plan in plans for part in plan.get("ranges", ()) if part["use"] == "scratch")


def rounding(found: Sequence[PlacedMemory]) -> int:
    """A page for each run of rows and node, and for each node's KV memory."""
    return PAGE * len(found) * (len(os.sched_getaffinity(0)) + 1) * len(WHOLE)


def check_share(policy: str, found: Sequence[PlacedMemory]) -> None:
    """What each node holds, as the policy has it."""
    held = {node.id: sum(one.on(node.id) for one in found) for node in (*WHOLE, *BARE)}
    near = [held[node.id] for node in WHOLE]
    if policy == "shard":
        assert min(near) > 0 and max(near) < 0.75 * sum(held.values()), held
    else:
        assert min(near) >= MATRIX_BYTES, held


def check_drift(server: LiveServer) -> None:
    """Pages moved away are missed by the metric and by `verify`, and change no word."""
    home, other = WHOLE[-1].id, WHOLE[0].id
    (engine,) = engines(server)
    block = of_weights(engine, home)
    move(engine, block, other)
    assert placed_memory(engine).remote >= AWAY  # a huge page moves as a whole
    assert verified(server) == (1, ["pages_off_plan"])
    deadline = time.monotonic() + _LOOK_S
    while min(ratios(server)) == 1.0:  # a sample that is at most some seconds old, sent on with the next answer
        assert time.monotonic() < deadline, "the metric has not seen it"
        assert said(server) == list(SAID[:1])
    move(engine, block, home)
    assert verified(server) == (0, [])


def check_offline(server: LiveServer) -> None:
    """A CPU that goes offline while serving is drift, and answers go on."""
    gone = WHOLE[-1].cpus[-1]
    switch = Path(f"/sys/devices/system/cpu/cpu{gone}/online")
    assert len(WHOLE[-1].cpus) > 1 and switch.exists(), f"CPU {gone} cannot be taken offline"
    try:
        switch.write_text("0")
        assert said(server) == list(SAID[:1])
        assert verified(server) == (1, ["thread_off_plan"])
    finally:
        switch.write_text("1")
    assert said(server) == list(SAID[:1])


def of_weights(pid: int, node: int) -> tuple[int, int]:
    """Some pages of the largest range that was planned for a node."""
    part = max((part for part in ranges_of(pid) if part.policy == f"prefer:{node}"), key=lambda part: part.present)
    assert set(nodes_of(pid, (part.start, AWAY))) == {node}
    return part.start, AWAY


@own_machine
def test_a_node_that_the_cpuset_excludes_holds_nothing(model: Path) -> None:
    """Its CPUs may compute; their weights come from a node whose memory is allowed."""
    allowed = WHOLE[0].id
    cpus = [cpu for node in WHOLE for cpu in node.cpus]
    with cpuset(cpus, [allowed]) as inside, serving(model, "--numa", "shard", before=inside) as server:
        assert said(server) == list(SAID[:1])
        (found,) = memory_of(server)
        assert (found.remote, found.on(allowed)) == (0, found.total) and found.total >= MATRIX_BYTES
        assert verified(server) == (0, [])


def test_strict_refuses_where_one_node_would_compute(model: Path) -> None:
    flags = ("serve", model, "--numa", "shard", "--numa-strict", "--check-config", *FLAGS)
    done = homenode(*flags, "--numa-nodes", WHOLE[-1].id)
    assert done.code == 2 and "--numa shard needs several nodes" in " ".join(done.err.split())
    assert homenode(*flags).code == 0
