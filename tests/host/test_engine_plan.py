"""What engines leave for `homenode verify`, and what is found when the kernel is asked about it."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from homenode.errors import HostError
from homenode.host.bind.base.state import State
from homenode.host.bind.base.syscalls import Syscalls
from homenode.host.bind.engine_plan import RecordedPlan, record_plan, recorded_plans, verify_plan
from homenode.host.bind.memory.residency import PlannedRange
from tests.engine.live import LiveServer
from tests.host.children import ONE, numa

SIZE = 1 << 20


@pytest.fixture
def state(tmp_path: Path) -> State:
    return State(tmp_path)


@pytest.fixture
def block() -> Iterator[tuple[int, int]]:
    """Memory of this process that has been touched: its address, and the node of its first page."""
    memory = mmap.mmap(-1, SIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = b"x" * SIZE
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    try:
        (node,) = Syscalls().move_pages(0, [address], None)
    except OSError:
        pytest.skip("move_pages is not allowed here")
    yield address, node


def plan(address: int, node: int, cpus: tuple[int, ...] = ()) -> RecordedPlan:
    return RecordedPlan("shard", cpus, {"weights": (PlannedRange(address, SIZE, (node,)),), "kv": ()})


def outcomes(found: RecordedPlan) -> dict[str, str]:
    return {step.what: step.outcome for step in verify_plan(os.getpid(), found).steps}


def test_a_plan_comes_back_as_it_was_left(state: State) -> None:
    left = RecordedPlan(
        "mirror",
        (0, 3),
        {"weights": (PlannedRange(4096, 8192, (1,)), PlannedRange(1 << 40, 1, (0, 1))), "kv": (), "scratch": ()},
    )
    record_plan(state, left)
    assert recorded_plans(state, os.getpid()) == {os.getpid(): left}
    assert recorded_plans(state, os.getppid()) == {os.getpid(): left}  # as of its front
    assert recorded_plans(state, 1 << 30) == {}


@numa
def test_pages_are_held_against_the_plan(block: tuple[int, int]) -> None:
    address, node = block
    assert outcomes(plan(address, node)) == {"threads": "skipped", "weights": "done"}
    report = verify_plan(os.getpid(), plan(address, node + 1))
    assert [finding.code for finding in report.findings] == ["pages_off_plan"] and not report.ok
    assert (
        f"of 1MiB of weights of engine {os.getpid()} planned for node {node + 1}, 1MiB lie elsewhere"
        in report.findings[0].message
    )


def test_a_compute_thread_that_is_pinned_nowhere_is_missed(block: tuple[int, int]) -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {ONE})
        assert outcomes(plan(*block, cpus=(ONE,)))["threads"] == "done"
        report = verify_plan(os.getpid(), plan(*block, cpus=(ONE, 4000)))
    finally:
        os.sched_setaffinity(0, before)
    assert [(finding.code, "CPUs 4000" in finding.message) for finding in report.findings] == [
        ("thread_off_plan", True)
    ]


def test_plans_of_engines_that_have_ended_are_swept_and_not_believed(state: State) -> None:
    program = (
        "from pathlib import Path; import sys; from tests.host.test_engine_plan import *; "
        "record_plan(State(Path(sys.argv[1])), plan(0, 0))"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(state.folder)],
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    (file,) = state.folder.glob("engines*/*.json")
    assert recorded_plans(state, int(file.stem)) == recorded_plans(state, os.getpid()) == {}
    record_plan(state, plan(0, 0))
    assert [left.name for left in state.folder.glob("engines*/*.json")] == [f"{os.getpid()}.json"]


def spoiled(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda raw: raw.update({key: value})


@pytest.mark.parametrize(
    "spoil", [spoiled("ranges", 3), spoiled("ranges", [{}]), spoiled("cpus", ["x"]), spoiled("cpus", [-1])]
)
def test_a_damaged_plan_is_an_error_that_says_so(state: State, spoil: Callable[[dict[str, Any]], None]) -> None:
    record_plan(state, plan(0, 0))
    (file,) = state.folder.glob("engines*/*.json")
    raw = json.loads(file.read_text())
    spoil(raw)
    file.write_text(json.dumps(raw))
    with pytest.raises(HostError, match=f"what engine {os.getpid()} has left in the state folder is damaged"):
        recorded_plans(state, os.getpid())


@pytest.mark.parametrize(
    "spoil", [spoiled("format", "other"), spoiled("boot", "yesterday"), spoiled("start", 1), spoiled("pid", None)]
)
def test_a_plan_of_another_process_is_none(state: State, spoil: Callable[[dict[str, Any]], None]) -> None:
    record_plan(state, plan(0, 0))
    (file,) = state.folder.glob("engines*/*.json")
    raw = json.loads(file.read_text())
    spoil(raw)
    file.write_text(json.dumps(raw))
    assert recorded_plans(state, os.getpid()) == {}


@pytest.mark.skipif(not LiveServer.possible(), reason="there is no model to serve")
def test_verify_needs_only_the_number_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("homenode._native", reason="needs the compiled core")
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))
    server = LiveServer("--kv-cache-memory", "2MiB", "--numa", "shard", "--max-num-batched-tokens", "48")
    try:
        words = [sys.executable, "-m", "homenode.cli.main", "verify", "--json", "--pid", str(server.process.pid)]
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    assert [step["what"] for step in json.loads(done.stdout)["steps"]] == ["threads", "weights", "kv"]
