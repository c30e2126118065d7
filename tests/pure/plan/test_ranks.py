"""Which devices take part, and which of them a rank drives."""

from __future__ import annotations

import pytest

from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.policies import global_slice
from homenode.host.plan.ranks import assign_ranks, npu_inventory, offered, taking_part
from homenode.host.topology.host import Accelerator, Accelerators, Host
from homenode.host.topology.source import CommandResult
from tests.npu_hosts import Chip, double_chips, map_text, npu_host, process_text, single_chips


def chips(count: int, busy: tuple[int, ...]) -> Accelerators:
    return Accelerators(
        tuple(Accelerator("npu", npu, "910B2", processes=(70 + npu,) if npu in busy else ()) for npu in range(count))
    )


def running(accelerators: Accelerators, demand: Demand) -> tuple[int, ...]:
    return taking_part(accelerators, npu_inventory(accelerators), demand)


def test_without_a_visible_list_the_running_devices_count_ascending() -> None:
    assert running(chips(4, (3, 1)), Demand()) == (1, 3)


def test_the_visible_list_filters_the_running_devices_and_keeps_its_order() -> None:
    assert running(chips(8, (0, 1, 2, 3)), Demand(visible=(3, 1))) == (3, 1)
    assert running(chips(8, (0, 1, 2, 3)), Demand(visible=(5, 2, 0, 11))) == (2, 0)


@pytest.mark.parametrize(("busy", "visible"), [((), None), ((0,), (1,)), ((0,), ()), ((0, 1), (9,))])
def test_nothing_running_that_is_visible_is_refused(busy: tuple[int, ...], visible: tuple[int, ...] | None) -> None:
    with pytest.raises(PlacementError) as caught:
        running(chips(2, busy), Demand(visible=visible))
    assert caught.value.code == "no_running_npu" and caught.value.remedy


def test_before_a_start_the_visible_devices_count_or_all() -> None:
    assert running(chips(4, ()), Demand(before_start=True)) == (0, 1, 2, 3)
    assert running(chips(4, (0,)), Demand(before_start=True, visible=(3, 2))) == (3, 2)


@pytest.mark.parametrize("visible", [(), (4,), (0, 17)])
def test_before_a_start_a_device_that_is_not_there_is_refused(visible: tuple[int, ...]) -> None:
    with pytest.raises(PlacementError) as caught:
        offered(range(4), visible)
    assert (caught.value.code, caught.value.param) == ("bad_visible_devices", "--visible-devices")


def test_a_rank_is_an_index_into_the_list() -> None:
    assert assign_ranks((3, 1), None, single=False).devices == {0: 3, 1: 1}
    assert assign_ranks((3, 1), 1, single=False).devices == {1: 1}


@pytest.mark.parametrize("rank", [2, 4000, -1])
def test_a_rank_beyond_a_list_of_several_is_refused(rank: int) -> None:
    with pytest.raises(PlacementError) as caught:
        assign_ranks((3, 1), rank, single=False)
    assert (caught.value.code, caught.value.param) == ("rank_out_of_range", "--local-rank")


def test_with_one_visible_device_every_rank_drives_it() -> None:
    plan = global_slice.plan(
        npu_host({0: "0-39"}, double_chips(range(4)), style="A3"), Demand(visible=(2,), local_rank=3)
    )
    assert [(worker.local_rank, worker.device) for worker in plan.workers] == [(3, 2)]
    assert [finding.code for finding in plan.findings if finding.code == "rank_beyond_visible"]


def test_one_running_device_of_many_does_not_serve_every_rank() -> None:
    """The process may use all four; that the others do not run yet does not make device 2 the one of rank 3."""
    host = npu_host({0: "0-39"}, double_chips(range(4), busy=[2]), style="A3")
    with pytest.raises(PlacementError) as caught:
        global_slice.plan(host, Demand(local_rank=3))
    assert caught.value.code == "rank_out_of_range"


def test_a_visible_device_that_does_not_run_is_warned_of() -> None:
    host = npu_host({0: "0-39"}, double_chips(range(4), busy=[1]), style="A3")
    plan = global_slice.plan(host, Demand(visible=(3, 1)))
    (idle,) = [finding for finding in plan.findings if finding.code == "visible_not_running"]
    assert (idle.severity, plan.devices_running) == ("warning", (1,)) and "visible NPU 3:" in idle.message


NODES = {0: "0-39"}
MISSING = CommandResult("", 127, "missing")
# Chips of the map, and what the tool prints instead of what it should.
BROKEN: dict[str, tuple[list[Chip], dict[str, str | CommandResult]]] = {
    "npu_map_empty": ([], {"npu-smi info -m": "\n"}),
    "npu_map_empty, no tool": (
        [],
        {"npu-smi info -m": MISSING, "npu-smi info": MISSING, "npu-smi info -t topo": MISSING},
    ),
    "npu_map_unparseable": ([], {"npu-smi info -m": "dcmi module initialize failed. ret is -8005\n"}),
    "npu_map_unparseable, short row": ([], {"npu-smi info -m": map_text("A2", [Chip(0, 0, 0)]) + "\t1\n"}),
    "npu_map_duplicate": ([Chip(0, 0, 0), Chip(1, 0, 0)], {}),
    "npu_unmapped": (single_chips({0: "0-19"}), {"npu-smi info": process_text("A2", [Chip(6, 0, 6)])}),
    "npu_unmapped, which chip of two": (double_chips([0, 1]), {"npu-smi info": process_text("950", [Chip(0, 0, 0)])}),
}


def broken(what: str) -> Host:
    chips, commands = BROKEN[what]
    return npu_host(NODES, chips, commands=commands)


@pytest.mark.parametrize("what", BROKEN)
def test_what_the_tool_says_wrongly_is_refused_with_the_parsers_code(what: str) -> None:
    with pytest.raises(PlacementError) as caught:
        global_slice.plan(broken(what), Demand())
    assert caught.value.code == what.partition(",")[0]
    assert caught.value.seen and caught.value.wanted and caught.value.remedy


def test_before_a_start_a_strange_row_of_the_process_table_does_not_matter() -> None:
    assert global_slice.plan(broken("npu_unmapped"), Demand(before_start=True)).devices_running == (0,)


@pytest.mark.parametrize(("failure", "rc"), [("timeout", -9), ("failed", 1)])
def test_a_tool_that_hangs_or_fails_is_named_rather_than_the_devices(failure: str, rc: int) -> None:
    host: Host = npu_host(NODES, single_chips({0: "0-19"}), commands={"npu-smi info": CommandResult("", rc, failure)})
    with pytest.raises(PlacementError) as caught:
        global_slice.plan(host, Demand())
    assert caught.value.code == f"tool_{failure}"
