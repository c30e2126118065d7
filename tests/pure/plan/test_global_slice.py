"""`global-slice`: each test names the rule it holds to."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.policies import global_slice
from homenode.host.plan.roles import split_roles
from tests.examples import examples
from tests.npu_hosts import double_chips, npu_host
from tests.pools import pools_of

FOUR_NODES = {0: "0-15", 1: "16-31", 2: "32-47", 3: "48-63"}


def test_slices_follow_each_other_in_the_order_of_ids() -> None:
    plan = global_slice.plan(npu_host(FOUR_NODES, double_chips(range(8)), style="A3"), Demand())
    assert (plan.strategy, plan.devices_total, plan.devices_running) == ("global-slice", 8, tuple(range(8)))
    assert pools_of(plan) == {npu: f"{npu * 8}-{npu * 8 + 7}" for npu in range(8)}
    assert [(worker.local_rank, worker.device) for worker in plan.workers] == [(npu, npu) for npu in range(8)]


def test_the_first_slices_take_what_is_left_over() -> None:
    host = npu_host({0: "0-19", 1: "20-39"}, double_chips(range(6)), style="A3")
    assert pools_of(global_slice.plan(host, Demand())) == {
        0: "0-6",
        1: "7-13",
        2: "14-20",
        3: "21-27",
        4: "28-33",
        5: "34-39",
    }


def test_a_fragmented_cpuset_is_cut_in_ascending_order() -> None:
    host = npu_host({0: "0-19", 1: "20-39"}, double_chips([0, 1]), style="A3", allowed="1-3,9,17-19,33-37")
    assert pools_of(global_slice.plan(host, Demand())) == {0: "1-3,9,17-18", 1: "19,33-37"}


def test_only_devices_with_a_process_have_a_pool_but_all_are_counted() -> None:
    host = npu_host(FOUR_NODES, double_chips(range(8), busy=[2, 5]), style="A3")
    plan = global_slice.plan(host, Demand())
    assert pools_of(plan) == {2: "16-23", 5: "40-47"}
    assert plan.devices_total == 8
    (hidden,) = [finding for finding in plan.findings if finding.code == "hidden_devices_counted"]
    assert hidden.severity == "info" and "0-1,3-4,6-7" in hidden.message


def test_visible_devices_do_not_change_anybodys_slice() -> None:
    host = npu_host(FOUR_NODES, double_chips(range(8)), style="A3")
    assert pools_of(global_slice.plan(host, Demand(visible=(6,)))) == {6: "48-55"}


def test_the_visible_order_is_the_order_of_ranks() -> None:
    host = npu_host(FOUR_NODES, double_chips(range(8)), style="A3")
    plan = global_slice.plan(host, Demand(visible=(7, 0), local_rank=0))
    assert plan.devices_running == (7, 0)
    (worker,) = plan.workers
    assert (worker.device, worker.cpus) == (7, parse_cpu_list("56-63"))


def test_logical_ids_that_start_at_four_are_cut_by_their_position() -> None:
    host = npu_host({0: "0-39"}, double_chips([4, 5, 6, 7], first_card=2), style="A3")
    assert pools_of(global_slice.plan(host, Demand())) == {4: "0-9", 5: "10-19", 6: "20-29", 7: "30-39"}


@given(ids=st.sets(st.integers(0, 15), min_size=1))
@settings(deadline=None, derandomize=True, max_examples=examples(60))
def test_a_container_that_is_shown_a_part_of_the_npus_is_warned_whatever_plans(ids: set[int]) -> None:
    chips = double_chips(sorted(ids))
    host = npu_host({0: "0-79", 1: "80-159"}, chips, style="A3")
    findings = global_slice.plan(host, Demand()).findings
    warned = [finding for finding in findings if finding.code == "npus_partly_shown"]
    assert len(warned) == (ids != set(range(len(ids))))
    assert all(format_cpu_list(sorted(ids)) in finding.message for finding in warned)


def test_offline_cpus_are_not_given_away() -> None:
    host = npu_host({0: "0-2,4-11"}, double_chips([0, 1]), style="A3", allowed="0-11", offline="3")
    assert pools_of(global_slice.plan(host, Demand())) == {0: "0-2,4-6", 1: "7-11"}


def test_memory_comes_from_the_node_of_the_first_cpu() -> None:
    host = npu_host({0: "0-9", 8: "10-19"}, double_chips([0, 1, 2]), style="A3")
    plan = global_slice.plan(host, Demand())
    assert pools_of(plan)[1] == "7-13"
    assert [worker.memory_node for worker in plan.workers] == [0, 0, 8]


def test_a_host_that_tells_of_no_nodes_is_sliced_and_its_memory_left_alone() -> None:
    plan = global_slice.plan(npu_host({}, double_chips([0]), style="A3", allowed="0-7", online="0-7"), Demand())
    assert pools_of(plan) == {0: "0-7"}
    assert plan.workers[0].memory_nodes == ()


def test_roles_are_two_interrupt_cpus_main_acl_and_release() -> None:
    assert split_roles(tuple(range(40, 80))) == {
        "irq": (40, 41),
        "main": tuple(range(42, 78)),
        "acl": (78,),
        "release": (79,),
    }
    assert split_roles((2, 3, 5, 7, 11)) == {"irq": (2, 3), "main": (5,), "acl": (7,), "release": (11,)}


def test_five_cpus_for_each_npu_are_enough() -> None:
    assert pools_of(global_slice.plan(npu_host({0: "0-9"}, double_chips([0, 1]), style="A3"), Demand())) == {
        0: "0-4",
        1: "5-9",
    }


@pytest.mark.parametrize("busy", [[0, 1], [1]])
def test_fewer_than_five_cpus_for_each_npu_are_refused_even_when_few_run(busy: list[int]) -> None:
    host = npu_host({0: "0-8"}, double_chips([0, 1], busy), style="A3")
    with pytest.raises(PlacementError) as caught:
        global_slice.plan(host, Demand())
    assert caught.value.code == "insufficient_cpus"
    assert "10 CPUs" in caught.value.wanted and "0-8" in caught.value.seen and caught.value.remedy


def test_before_a_start_the_visible_devices_are_placed_although_nothing_runs() -> None:
    host = npu_host(FOUR_NODES, double_chips(range(8), busy=[]), style="A3")
    assert pools_of(global_slice.plan(host, Demand(visible=(3,), before_start=True))) == {3: "24-31"}


cpu_sets = st.sets(st.integers(0, 700), min_size=1, max_size=200).map(lambda cpus: tuple(sorted(cpus)))
device_sets = st.sets(st.integers(0, 40), min_size=1, max_size=20).map(lambda ids: tuple(sorted(ids)))


@settings(deadline=None, derandomize=True, max_examples=examples(150))
@given(allowed=cpu_sets, ids=device_sets)
def test_slices_are_disjoint_cover_the_allowance_and_differ_by_one_cpu_at_most(
    allowed: tuple[int, ...], ids: tuple[int, ...]
) -> None:
    if len(allowed) < 5 * len(ids):
        with pytest.raises(PlacementError, match=r"allowed CPUs? (is|are) too few"):
            global_slice.slices(allowed, ids)
        return
    cut = global_slice.slices(allowed, ids)
    assert tuple(cpu for npu in ids for cpu in cut[npu]) == allowed
    sizes = [len(cut[npu]) for npu in ids]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


@settings(deadline=None, derandomize=True, max_examples=examples(40))
@given(data=st.data(), spare=st.integers(0, 30), count=st.integers(2, 12))
def test_processes_with_one_cpuset_and_other_visible_devices_never_overlap(
    data: st.DataObject, spare: int, count: int
) -> None:
    host = npu_host({0: f"0-{5 * count + spare - 1}"}, double_chips(range(count)), style="A3")
    order = data.draw(st.permutations(range(count)))
    cut = data.draw(st.integers(1, count - 1))
    first, second = (global_slice.plan(host, Demand(visible=tuple(part))) for part in (order[:cut], order[cut:]))
    together = [cpu for plan in (first, second) for pool in plan.pools.values() for cpu in pool]
    assert sorted(together) == list(host.allowance.cpus)
