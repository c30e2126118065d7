"""Running processes bound from one node to another: what moves, what stays, what drifts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from homenode.units import format_bytes
from tests.host.children import child, masks
from tests.lab.machine import WHOLE, Done, command, homenode, several_nodes
from tests.lab.residency import move, places

pytestmark = several_nodes
BLOCK, SMALL = 64 << 20, 4 << 20


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))


def step(done: Done, what: str) -> tuple[str, str]:
    return next((step["outcome"], step["detail"]) for step in done.json["steps"] if step["what"] == what)


def codes(done: Done) -> list[str]:
    return [finding["code"] for finding in done.json["findings"]]


def test_a_process_is_taken_to_another_node_checked_moved_away_and_put_back(tmp_path: Path) -> None:
    here, there = WHOLE[0], WHOLE[-1]
    every_cpu = tuple(sorted(os.sched_getaffinity(0)))
    plan = ("--cpus", there.cpu_list, "--memory-nodes", there.id, "--json")
    table = tmp_path / "weights"
    table.write_bytes(os.urandom(SMALL))
    with child(
        *command("run", "--cpus", f"{here.cpu_list},{there.cpu_list}", "--memory-nodes", here.id, "--")
    ) as running:
        before = masks(running.pid)[running.pid]
        own, shared, mapped = (
            int(running.tell("private", BLOCK)),
            int(running.tell("memfd", SMALL)),
            int(running.tell("file", table)),
        )
        cached = places(running.pid, mapped, SMALL)
        assert places(running.pid, own, BLOCK) == places(running.pid, shared, SMALL) == {here.id}

        bound = homenode("bind", "--pid", running.pid, *plan)
        outcome, told = step(bound, "pages")
        assert (bound.code, outcome, codes(bound)) == (0, "done", [])
        moved = float(told.split("MiB of ")[0])
        assert (
            moved >= BLOCK >> 20
            and f"moved to node {there.id}" in told
            and f"{format_bytes(SMALL)} in shared mappings" in told
        )
        assert places(running.pid, own, BLOCK) == {there.id}
        assert places(running.pid, shared, SMALL) == {here.id}
        assert places(running.pid, mapped, SMALL) == cached
        assert set(masks(running.pid).values()) == {there.cpus}

        seen = homenode("verify", "--pid", running.pid, *plan)
        # It was started bound to the other node, and nobody can change that from outside.
        assert codes(seen) == ["policy_off_plan"]

        move(running.pid, (own, BLOCK), here.id)
        assert "pages_off_plan" in codes(homenode("verify", "--pid", running.pid, *plan))
        undone = homenode("bind", "--undo", "--pid", running.pid, "--json")
        assert (undone.code, set(masks(running.pid).values())) == (0, {before})
    assert os.sched_getaffinity(0) == set(every_cpu)


def test_verify_is_content_until_something_drifts() -> None:
    here, there = WHOLE[0], WHOLE[-1]
    plan = ("--cpus", there.cpu_list, "--memory-nodes", there.id, "--json")
    with child() as running:
        homenode("bind", "--pid", running.pid, "--cpus", here.cpu_list, "--memory-nodes", here.id)
        own = int(running.tell("private", BLOCK))
        assert places(running.pid, own, BLOCK) == {here.id}
        assert homenode("bind", "--pid", running.pid, *plan).code == 0
        later = int(running.tell("private", SMALL))
        assert places(running.pid, later, SMALL) == {there.id}  # touched where it runs now
        good = homenode("verify", "--pid", running.pid, *plan)
        assert (good.code, codes(good)) == (0, [])

        move(running.pid, (own, BLOCK), here.id)
        drifted = homenode("verify", "--pid", running.pid, *plan)
        assert (drifted.code, codes(drifted), step(drifted, "pages")[0]) == (1, ["pages_off_plan"], "failed")
        assert homenode("bind", "--pid", running.pid, *plan).code == 0
        assert places(running.pid, own, BLOCK) == {there.id}

        os.sched_setaffinity(running.pid, here.cpus)
        drifted = homenode("verify", "--pid", running.pid, *plan)
        assert (drifted.code, codes(drifted)) == (1, ["thread_off_plan"])
        assert homenode("bind", "--pid", running.pid, *plan).code == 0
        assert homenode("verify", "--pid", running.pid, *plan).code == 0


def test_memory_that_is_not_asked_for_stays() -> None:
    here, there = WHOLE[0], WHOLE[-1]
    with child() as running:
        homenode("bind", "--pid", running.pid, "--cpus", here.cpu_list, "--memory-nodes", here.id)
        own = int(running.tell("private", SMALL))
        for flags in (("--memory-nodes", there.id, "--no-memory"), ()):
            assert homenode("bind", "--pid", running.pid, "--cpus", there.cpu_list, *flags).code == 0
            assert places(running.pid, own, SMALL) == {here.id}
