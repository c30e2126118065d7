"""The documented selection by device type, its gate and its log lines, and the recorded cases of the
acceptance check.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from homenode.cpuset import parse_cpu_list
from homenode.errors import PlacementError
from homenode.host.discovery.read import read_host
from homenode.host.discovery.snapshot import load_recording
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan
from homenode.host.plan.policies import ascend
from homenode.host.topology.accelerators.visible import visible_devices
from tests.npu_hosts import Chip, double_chips, npu_host, single_chips
from tests.paths import SHARED
from tests.pools import pools_of

NODES = {0: "0-15", 1: "16-31", 2: "32-47", 3: "48-63"}
NEAR = single_chips({0: "0-15", 1: "32-47"})


@pytest.mark.parametrize("spelling", ["A3", "a3", "Ascend910_93", "910_9392", "Ascend 910C"])
def test_a3_is_cut_by_global_slice_in_every_spelling(spelling: str) -> None:
    plan = ascend.plan(npu_host(NODES, NEAR), Demand(device_type=spelling))
    assert (plan.strategy, plan.findings) == ("global-slice", ())


@pytest.mark.parametrize(
    "spelling", ["A2", "a2", "910B", "Ascend910B3", "310P", "310p3", "Atlas 300I Duo", "A5", "950", "Ascend950PR"]
)
def test_every_other_type_is_planned_by_topo_affinity(spelling: str) -> None:
    plan = ascend.plan(npu_host(NODES, NEAR), Demand(device_type=spelling))
    assert (plan.strategy, plan.findings) == ("topo-affinity", ())


@pytest.mark.parametrize("spelling", ["A9", "", "H100", "b910"])
def test_a_type_nobody_knows_is_planned_by_topo_affinity_with_a_warning(spelling: str) -> None:
    plan = ascend.plan(npu_host(NODES, NEAR), Demand(device_type=spelling))
    assert plan.strategy == "topo-affinity"
    assert [(finding.severity, finding.code) for finding in plan.findings] == [("warning", "device_type_unknown")]


@pytest.mark.parametrize(
    ("style", "chips", "strategy"),
    [
        ("A2", NEAR, "topo-affinity"),
        ("A3", double_chips([0, 1]), "global-slice"),
        ("310P", [Chip(32, 0, 0, "0-15"), Chip(32, 1, 1, "0-15")], "topo-affinity"),
        ("950", NEAR, "topo-affinity"),
    ],
)
def test_without_a_flag_the_chips_names_tell_the_type(style: str, chips: list[Chip], strategy: str) -> None:
    plan = ascend.plan(npu_host(NODES, chips, style=style), Demand())
    assert plan.strategy == strategy
    assert "device_type_unknown" not in {finding.code for finding in plan.findings}


def test_the_flag_stands_before_the_chips_names() -> None:
    plan = ascend.plan(npu_host(NODES, double_chips([0, 1]), style="A3"), Demand(device_type="A2"))
    assert plan.strategy == "global-slice"
    assert [finding.code for finding in plan.findings] == ["topo_affinity_missing"]


def test_the_gate_lets_arm_pass_and_tells_others_that_binding_is_skipped() -> None:
    def gate(machine: str) -> list[tuple[str, str]]:
        plan = ascend.plan(npu_host(NODES, NEAR, machine=machine), Demand())
        return [(finding.severity, finding.message) for finding in plan.findings if finding.code == "not_arm"]

    assert gate("aarch64") == gate("arm64") == gate("armv8l") == []
    assert gate("x86_64") == gate("AMD64") == [("info", "CPU binding skipped: non-ARM CPU detected.")]
    assert [severity for severity, _ in gate("riscv64")] == ["warning"]


def test_the_log_lines_are_the_documented_ones() -> None:
    plan = ascend.plan(npu_host({0: "0-7", 1: "8-15"}, single_chips({0: "0-7", 2: "0-7"})), Demand(visible=(2,)))
    assert ascend.log_lines(plan, "topo_affinity", 0, (2,)) == [
        "[cpu_bind_mode] mode=topo_affinity rank=0 visible_npus=[2]",
        "The CPU allocation plan is as follows:",
        "NPU2: main=[10, 11, 12, 13] acl=[14] release=[15]",
    ]
    assert ascend.log_lines(plan, "topo-affinity", 0, (2,)) == ascend.log_lines(plan, "topo_affinity", 0, (2,))


def test_a_plan_survives_json_and_is_the_same_twice() -> None:
    host = npu_host(NODES, single_chips({npu: NODES[npu // 2] for npu in range(8)}))
    plan = ascend.plan(host, Demand())
    assert Plan.from_dict(json.loads(plan.to_json())) == plan == ascend.plan(host, Demand())
    assert all(worker.why and "\n" not in worker.why for worker in plan.workers)


@pytest.mark.parametrize("device_type", ["A2", "A3"])
def test_640_cpus_and_16_npus_take_milliseconds(device_type: str) -> None:
    nodes = {node: f"{80 * node}-{80 * node + 79}" for node in range(8)}
    host = npu_host(nodes, single_chips({npu: nodes[npu // 2] for npu in range(16)}))
    took = []
    for _ in range(5):
        start = time.process_time()
        ascend.plan(host, Demand(device_type=device_type))
        took.append(time.process_time() - start)
    assert min(took) < 0.02


# The acceptance check's own recordings, where this clone has them: the same comparison, without a process for each.
CASES = SHARED / "checks/placement-cases.json"
DOCUMENTED = [case for case in json.loads(CASES.read_text()) if case["expect"]] if CASES.exists() else []


@pytest.mark.skipif(
    not DOCUMENTED, reason="needs ../shared/checks/placement-cases.json, which this clone does not have"
)
@pytest.mark.parametrize("case", DOCUMENTED, ids=lambda case: case["name"])
def test_a_recorded_case(case: dict[str, Any], tmp_path: Path) -> None:
    recording = tmp_path / "host.json"
    recording.write_text(json.dumps(case["host"]))
    source = load_recording(recording)
    host = read_host(source)
    flags = dict(zip(case["args"][::2], case["args"][1::2], strict=True))
    want = case["expect"]
    try:
        visible = visible_devices(host.accelerators, source.env, flags.get("--visible-devices"))
        plan = ascend.plan(
            host, Demand(device_type=flags["--device-type"], visible=visible, local_rank=int(flags["--local-rank"]))
        )
    except PlacementError as error:
        assert error.code == want.get("error_code"), error
        return
    assert (plan.strategy, pools_of(plan)) == (
        want["strategy"],
        {int(npu): cpus for npu, cpus in want["pools"].items()},
    )
    (worker,) = plan.workers
    assert (worker.device, worker.memory_node) == (want["device"], want["memory_node"])
    assert worker.roles == {role: parse_cpu_list(cpus) for role, cpus in want["roles"].items()}
