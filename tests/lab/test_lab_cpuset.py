"""Control groups that permit one node only: read as the kernel means them, and never widened."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from homenode.cpuset import parse_cpu_list
from tests.host.children import child, masks
from tests.lab.machine import CGROUPS, WHOLE, cpuset, homenode, own_machine, several_nodes, start, status
from tests.lab.test_lab_run import SHOW, shown
from tests.waiting import wait_until

pytestmark = [several_nodes, own_machine]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))


@contextlib.contextmanager
def only_the_last_node() -> Iterator[tuple[str, ...]]:
    with cpuset(WHOLE[-1].cpus, [WHOLE[-1].id]) as inside:
        yield inside


def test_a_process_inside_sees_its_limits() -> None:
    last = WHOLE[-1]
    with only_the_last_node() as inside:
        seen = start("host", "--json", before=inside).json["allowance"]
    told = (seen["cpus"], seen["cpuset"], seen["memory_nodes"], seen["mask_origin"])
    assert told == (last.cpu_list, last.cpu_list, str(last.id), "cpuset")


def test_cpus_and_memory_outside_are_never_taken() -> None:
    other, last = WHOLE[0], WHOLE[-1]
    with only_the_last_node() as inside:
        refused = start("run", "--cpus", other.cpu_list, "--", *SHOW, before=inside)
        assert (refused.code, refused.out) == (2, "") and "inherited from its cpuset" in refused.err
        for nodes in (str(other.id), f"{other.id},{last.id}"):
            for flags in ((), ("--strict",)):
                done = start(
                    "run", *flags, "--cpus", last.cpu_list, "--memory-nodes", nodes, "--", *SHOW, before=inside
                )
                assert (done.code, done.out) == (2, "")
                assert f"memory of NUMA node {other.id} may not be taken" in done.err and "cpuset.mems" in done.err


def test_plans_made_inside_stay_inside() -> None:
    other, last = WHOLE[0], WHOLE[-1]
    with only_the_last_node() as inside:
        done = start("run", "--cpu-threads-bind", "auto", "--reserve-cpus", 0, "--", *SHOW, before=inside)
        cpus, policy = shown(done.out)
        assert (done.code, policy) == (0, {f"bind:{last.id}"}), done.err
        assert cpus and set(parse_cpu_list(cpus)) <= set(last.cpus)  # one for each core
        refused = start("run", "--numa-bind", "--numa-bind-nodes", other.id, "--", *SHOW, before=inside)
        assert (refused.code, refused.out) == (2, "")
        fair = start("plan", "--strategy", "fair", "--workers", 1, "--json", before=inside).json["workers"]
    assert [worker["cpus"] for worker in fair] == [last.cpu_list]
    assert fair[0]["memory_node"] in (last.id, None)


def test_a_process_inside_is_not_bound_to_what_is_outside() -> None:
    other, last = WHOLE[0], WHOLE[-1]
    with only_the_last_node() as inside, child(*inside) as running:
        refused = homenode("bind", "--pid", running.pid, "--cpus", other.cpu_list)
        assert refused.code in (1, 2) and "cpuset" in refused.err
        assert set(masks(running.pid).values()) == {last.cpus}
        done = homenode("bind", "--pid", running.pid, "--cpus", last.cpu_list, "--memory-nodes", other.id, "--json")
        assert [finding["code"] for finding in done.json["findings"]] == ["memory_node_not_allowed"]
        assert status(running.pid, "Mems_allowed_list") == str(last.id)
        running.end()


def test_a_cpuset_that_changes_is_drift() -> None:
    other, last = WHOLE[0], WHOLE[-1]
    plan = ("--cpus", last.cpu_list, "--json")
    with only_the_last_node() as inside, child() as running:
        assert homenode("bind", "--pid", running.pid, *plan).code == 0
        group = CGROUPS / f"lab-{os.getpid()}"
        (group / "cpuset.mems").write_text(str(other.id))
        (group / "cpuset.cpus").write_text(other.cpu_list)
        (group / "cgroup.procs").write_text(str(running.pid))
        assert inside
        wait_until(lambda: set(masks(running.pid).values()) == {other.cpus})
        drifted = homenode("verify", "--pid", running.pid, *plan)
        assert (drifted.code, [finding["code"] for finding in drifted.json["findings"]]) == (1, ["thread_off_plan"])
        running.end()
