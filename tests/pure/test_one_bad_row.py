"""A row of a vendor's table says something of its own device only: whatever one row becomes, the other devices are read
and placed as before.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homenode.cli.main import cli
from homenode.errors import PlacementError
from homenode.host.discovery.read import read_host
from homenode.host.discovery.snapshot import save_recording
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan
from homenode.host.plan.policies import ascend
from homenode.host.plan.select import make_plan
from homenode.host.plan.variables import RANK_VARIABLES
from homenode.host.topology.accelerators.visible import visible_devices
from homenode.host.topology.host import Host
from homenode.host.topology.source import CommandResult, RecordedSource
from tests.examples import examples
from tests.npu_hosts import kernel_files, map_text, npu_host, process_text, single_chips, topo_text
from tests.recorded import recording

fuzz = settings(
    max_examples=examples(60), derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
NODES = {node: f"{24 * node}-{24 * node + 23}" for node in range(8)}
CHIPS = single_chips(NODES)
# What a cell may hold instead of what it should, and what a whole line may become.
CELLS = st.one_of(st.sampled_from(["", "NA", "N/A", "-", "?", "0-", "7-0", "1,,2", "9" * 40]), st.text(max_size=12))
REMARK = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)"


def with_line(text: str, start: str, line: str) -> str:
    """`text` with `line` instead of the one that begins with `start`; what ends a line in Python is no part of a
    line.
    """
    flat = " ".join(line.splitlines())
    return "\n".join(flat if one.startswith((f"{start} ", f"{start}\t")) else one for one in text.split("\n"))


def of_others(plan: Plan, but: int) -> list[tuple[int, tuple[int, ...]]]:
    return [(worker.device, worker.cpus) for worker in plan.workers if worker.device != but]


@fuzz
@given(row=st.integers(0, 7), cell=CELLS)
def test_a_row_of_the_npu_topology_fails_no_rank_but_its_own(row: int, cell: str) -> None:
    topo = topo_text("A2", CHIPS)
    relations = " ".join("X" if other == row else "HCCS" for other in range(8))
    bad = npu_host(
        NODES, CHIPS, commands={"npu-smi info -t topo": with_line(topo, f"NPU{row}", f"NPU{row} {relations} {cell}")}
    )
    whole = ascend.plan(npu_host(NODES, CHIPS), Demand())
    assert of_others(ascend.plan(bad, Demand()), row) == of_others(whole, row)
    for device in set(range(8)) - {row}:
        plan = ascend.plan(bad, Demand(visible=(device,)))
        assert plan.pools == ascend.plan(npu_host(NODES, CHIPS), Demand(visible=(device,))).pools
        assert not [finding for finding in plan.findings if finding.severity == "error"]


@pytest.mark.parametrize("cell", ["", "NA", "0-1x5"])
def test_the_rank_of_the_bad_row_is_refused_by_what_is_wrong_with_it(cell: str) -> None:
    topo = with_line(topo_text("A2", CHIPS), "NPU3", f"NPU3 HCCS HCCS HCCS X HCCS HCCS HCCS HCCS {cell}")
    host = npu_host(NODES, CHIPS, commands={"npu-smi info -t topo": topo})
    with pytest.raises(PlacementError) as caught:
        ascend.plan(host, Demand(local_rank=3))
    assert caught.value.code == ("topo_row_unparseable" if cell == "0-1x5" else "affinity_conflict")
    assert cell == "0-1x5" == caught.value.seen[-5:] or "not reported" in caught.value.seen


@pytest.mark.parametrize("cell", ["", "NA"])
def test_a_column_that_tells_nothing_at_all_is_the_documented_fallback(cell: str) -> None:
    source = recording("ascend-192cpu-blank-affinity")
    topo = source.commands["npu-smi info -t topo"].out
    told = topo.replace(" \n", f" {cell}\n") if cell else topo
    answers = {**source.commands, "npu-smi info -t topo": CommandResult(told)}
    host = read_host(RecordedSource(source.machine, source.files, answers))
    plan = make_plan("ascend", host, Demand())
    assert plan.strategy == "global-slice" and len(plan.workers) == 8
    assert "topo_affinity_missing" in {finding.code for finding in plan.findings}


@pytest.mark.parametrize("at", range(9))
def test_a_line_of_the_drivers_logger_between_rows_of_the_map_is_no_row(at: int) -> None:
    lines = map_text("A2", CHIPS).split("\n")
    text = "\n".join([*lines[: at + 1], REMARK, *lines[at + 1 :]])
    host = npu_host(NODES, CHIPS, commands={"npu-smi info -m": text})
    assert host.accelerators.errors == ()
    assert ascend.plan(host, Demand()) == ascend.plan(npu_host(NODES, CHIPS), Demand())


def test_a_row_of_the_map_that_cannot_be_read_does_not_refuse_devices_that_are_named() -> None:
    host = npu_host(NODES, CHIPS, commands={"npu-smi info -m": map_text("A2", CHIPS[:7]) + "\t7    0\n"})
    whole = ascend.plan(npu_host(NODES, CHIPS), Demand(visible=(1, 2)))
    plan = make_plan("topo-affinity", host, Demand(visible=(1, 2)))
    assert plan.pools == whole.pools
    assert "npu_map_unparseable" in {finding.code for finding in plan.findings}  # told all the same
    for strategy, visible in (("topo-affinity", None), ("topo-affinity", (7,)), ("global-slice", (1, 2))):
        with pytest.raises(PlacementError, match="row of the map"):  # where it counts, it refuses
            make_plan(strategy, host, Demand(visible=visible))


def test_a_process_on_an_unknown_chip_refuses_only_where_it_may_be_on_one_of_ours() -> None:
    idle = [*CHIPS[:6], *single_chips({6: NODES[6], 7: NODES[7]}, busy=[])]
    rows = process_text("A2", idle) + "| 9       0                 | 77            | python3                  | 1 |\n"
    host = npu_host(NODES, idle, commands={"npu-smi info": rows})
    assert make_plan("ascend", host, Demand(visible=(0, 1))).devices_running == (0, 1)
    with pytest.raises(PlacementError) as caught:
        make_plan("ascend", host, Demand(visible=(0, 6)))
    assert caught.value.code == "npu_unmapped"


QUERY = "nvidia-smi --query-gpu=index,uuid,pci.bus_id,name --format=csv,noheader"


def nvidia_host(query: str, topo: str) -> Host:
    files = kernel_files(NODES, None, "", "")
    return read_host(
        RecordedSource("x86_64", files, {QUERY: CommandResult(query), "nvidia-smi topo -m": CommandResult(topo)})
    )


LIST = "".join(
    f"{n}, GPU-0000000{n}-0000-0000-0000-000000000000, 00000000:{n + 16:02X}:00.0, NVIDIA L40S\n" for n in range(8)
)
TOPO = "".join(
    ["\t" + "\t".join(f"GPU{n}" for n in range(8)) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"]
    + [
        f"GPU{n}\t" + "\t".join(" X " if m == n else "SYS" for m in range(8)) + f"\t{NODES[n]}\t{n}\t\tN/A\n"
        for n in range(8)
    ]
)


@fuzz
@given(row=st.integers(0, 7), cells=st.lists(CELLS, max_size=4), in_topo=st.booleans())
def test_a_row_of_nvidias_tables_costs_no_other_gpu_its_place(row: int, cells: list[str], in_topo: bool) -> None:
    relations = "\t".join(" X " if other == row else "SYS" for other in range(8))
    bad = "\t".join([f"GPU{row}", relations, *cells]) if in_topo else ", ".join([str(row), *cells])
    start = f"GPU{row}" if in_topo else f"{row},"
    host = nvidia_host(
        LIST if in_topo else with_line(LIST, start, bad), with_line(TOPO, start, bad) if in_topo else TOPO
    )
    others = set(range(8)) - {row}
    assert {chip.id: chip.node for chip in host.accelerators.chips if chip.id in others} == {n: n for n in others}
    visible = visible_devices(host.accelerators, {"CUDA_VISIBLE_DEVICES": ",".join(map(str, sorted(others)))}, None)
    plan = make_plan("numa-bind", host, Demand(visible=visible))
    assert [worker.memory_node for worker in plan.workers] == sorted(others)


KFD = "/sys/class/kfd/kfd/topology/nodes"


@fuzz
@given(row=st.integers(0, 3), text=st.text(max_size=60))
def test_a_node_of_amds_driver_that_cannot_be_read_costs_no_other_gpu_its_place(row: int, text: str) -> None:
    files = kernel_files(NODES, None, "", "")
    for n in range(4):
        address = f"0000:{n + 1:02x}:00.0"
        files[f"{KFD}/{n}/properties"] = f"simd_count 304\nlocation_id {n + 1 << 8}\ndomain 0\n"
        for name, value in {"vendor": "0x1002", "device": "0x74a1", "class": "0x120000", "numa_node": str(n)}.items():
            files[f"/sys/bus/pci/devices/{address}/{name}"] = value
        files[f"/sys/bus/pci/devices/{address}/local_cpulist"] = NODES[n]
    files[f"{KFD}/{row}/properties"] = text
    found = {chip.address: chip.node for chip in read_host(RecordedSource("x86_64", files)).accelerators.chips}
    assert {f"0000:{n + 1:02x}:00.0": n for n in range(4) if n != row}.items() <= found.items()


def dry_run(path: Path, *flags: str) -> tuple[int, dict[str, Any]]:
    command = ("run", "--dry-run", "--from", str(path), "--strategy", "ascend", *flags, "--", "true")
    result = CliRunner().invoke(cli, command, env=dict.fromkeys(RANK_VARIABLES))
    return result.exit_code, json.loads(result.stdout) if result.stdout else {}


def test_a_program_that_starts_its_ranks_has_the_cpus_of_all_where_one_of_them_is_not_bound(tmp_path: Path) -> None:
    source = recording("ascend-192cpu-blank-affinity")
    topo = topo_text("A2", [*CHIPS[:3], *CHIPS[4:]])
    answers = {**source.commands, "npu-smi info -t topo": CommandResult(topo)}
    save_recording(tmp_path / "host.json", RecordedSource(source.machine, source.files, answers))
    code, whole = dry_run(tmp_path / "host.json")
    assert (code, whole["bound"], whole["cpus"]) == (0, True, "0-191")  # rank 3 may not be shut in with the others
    code, other = dry_run(tmp_path / "host.json", "--local-rank", "0")
    assert (code, other["cpus"]) == (0, "2-45")
    assert dry_run(tmp_path / "host.json", "--local-rank", "3") == (0, {"command": ["true"], "bound": False})
    assert dry_run(tmp_path / "host.json", "--strict") == (2, {})
