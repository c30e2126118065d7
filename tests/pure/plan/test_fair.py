"""`fair` by example: whose share lies where, who agrees with whom, and what is refused."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from homenode.cpuset import parse_cpu_list
from homenode.errors import PlacementError
from homenode.host.discovery.read import read_host
from homenode.host.plan.check import check
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan
from homenode.host.plan.policies import fair
from homenode.host.plan.resources.device_nodes import local_nodes
from homenode.host.plan.resources.share import FEW
from homenode.host.topology.host import Accelerator, Accelerators, Host
from homenode.host.topology.source import CommandResult, RecordedSource
from tests.host_values import Shape, host_of
from tests.paths import SHARED
from tests.pools import codes_of, memory_of, pools_of, roles_of
from tests.recorded import NAMES, recorded_host

CASES = SHARED / "checks/placement-cases.json"


def four_nodes(cores: int = 8, **more: Any) -> list[Shape]:
    """Two sockets of two nodes."""
    return [Shape(node, cores, socket=node // 2, **more) for node in range(4)]


def made(host: Host, **demand: Any) -> Plan:
    return fair.plan(host, Demand(**demand))


def refusal(host: Host, **demand: Any) -> PlacementError:
    with pytest.raises(PlacementError) as caught:
        made(host, **demand)
    assert caught.value.remedy and caught.value.seen and caught.value.wanted
    return caught.value


# Whose share lies where.


def test_devices_of_one_node_have_equal_runs_of_it_and_nothing_of_the_free_node_beside_it() -> None:
    plan = made(host_of(four_nodes(12), {0: (1,), 1: (1,), 2: (3,), 3: (3,)}))
    assert pools_of(plan) == {0: "12-17", 1: "18-23", 2: "36-41", 3: "42-47"}
    assert memory_of(plan) == {0: (1,), 1: (1,), 2: (3,), 3: (3,)}


def test_devices_with_fewer_than_five_cpus_at_home_get_those_of_the_nearest_node_that_is_free() -> None:
    plan = made(host_of(four_nodes(), {0: (1,), 1: (1,), 2: (3,), 3: (3,)}))
    assert pools_of(plan) == {0: "0,8-11", 1: "1,12-15", 2: "16,24-27", 3: "17,28-31"}
    assert memory_of(plan) == {0: (1,), 1: (1,), 2: (3,), 3: (3,)}


def test_devices_that_share_every_node_have_half_of_theirs() -> None:
    plan = made(host_of(four_nodes(), {device: (device // 2,) for device in range(8)}))
    assert pools_of(plan) == {device: f"{4 * device}-{4 * device + 3}" for device in range(8)}


def test_a_single_device_stays_at_home_and_takes_what_five_cpus_lack_from_elsewhere() -> None:
    assert made(host_of([Shape(0, 9), Shape(1, 5)], {0: (1,)})).pools[0] == (9, 10, 11, 12, 13)
    assert made(host_of([Shape(0, 4), Shape(1, 4)], {0: (1,)}, offline=(5,))).pools[0] == (4, 6, 7, 0, 1)


def test_five_cpus_may_be_the_threads_of_fewer_cores() -> None:
    assert pools_of(made(host_of([Shape(0, 3, smt=2), Shape(1, 3, smt=2)], {0: (1,)}))) == {0: "6-11"}
    assert pools_of(made(host_of([Shape(0, 3, smt=2), Shape(1, 2, smt=2)], {0: (1,)}))) == {0: "0-1,6-9"}


def test_the_core_left_over_goes_to_the_first_device() -> None:
    plan = made(host_of([Shape(0, 14)], {0: (0,), 1: (0,), 2: (0,)}))
    assert pools_of(plan) == {0: "0-4", 1: "5-9", 2: "10-13"}


def test_free_cores_go_to_those_with_too_few() -> None:
    plan = made(host_of([Shape(0, 8), Shape(1, 2), Shape(2, 6)], {0: (0,), 1: (1,)}))
    assert pools_of(plan) == {0: "0-7", 1: "8-12"}


def test_where_no_node_is_free_the_nearest_neighbour_with_more_than_five_spares_what_is_lacking() -> None:
    plan = made(host_of([Shape(0, 8), Shape(1, 2), Shape(2, 20, socket=1)], {0: (0,), 1: (1,), 2: (2,)}))
    assert pools_of(plan) == {0: "0-4", 1: "5-9", 2: "10-29"}
    plan = made(host_of([Shape(0, 6), Shape(1, 2), Shape(2, 20, socket=1)], {0: (0,), 1: (1,), 2: (2,)}))
    assert pools_of(plan) == {0: "0-4", 1: "5-7,26-27", 2: "8-25"}


def test_where_nobody_has_more_than_five_a_small_home_stays_small() -> None:
    assert pools_of(made(host_of([Shape(0, 5), Shape(1, 2)], {0: (0,), 1: (1,)}))) == {0: "0-4", 1: "5-6"}


def test_free_nodes_are_given_whole_to_devices_of_unknown_place_where_that_is_even() -> None:
    plan = made(host_of([Shape(node, 4) for node in range(5)], {0: (), 1: ()}))
    split = [
        node for node in range(5) if all(set(range(4 * node, 4 * node + 4)) & set(pool) for pool in plan.pools.values())
    ]
    assert len(split) == 1
    assert sorted(map(len, plan.pools.values())) == [10, 10]


def test_sparse_node_ids_and_positional_distances_lead_to_the_nearest_free_node() -> None:
    shapes = [Shape(0, 4), Shape(8, 4, socket=1), Shape(16, 4), Shape(24, 4, socket=1)]
    far = {(0, 8): 40, (0, 16): 40, (0, 24): 20, (8, 16): 20, (8, 24): 40, (16, 24): 40}
    plan = made(host_of(shapes, {0: (0,), 1: (8,)}, distances=far))
    assert pools_of(plan) == {0: "0-3,12", 1: "4-8"}


def test_all_nodes_of_a_clustered_socket_are_home() -> None:
    plan = made(host_of(four_nodes(), {0: (0, 1), 1: (0, 1), 2: (2, 3)}))
    assert pools_of(plan) == {0: "0-7", 1: "8-15", 2: "16-31"}
    assert memory_of(plan) == {0: (0,), 1: (1,), 2: (2, 3)}


def test_an_affinity_of_a_few_cpus_of_a_node_means_that_node() -> None:
    plan = made(host_of([Shape(0, 8), Shape(1, 8)], {0: (0,), 1: (1,)}, affinity={0: "0-1"}))
    assert pools_of(plan) == {0: "0-7", 1: "8-15"}


def test_an_affinity_of_half_a_node_counts_it_in() -> None:
    plan = made(host_of([Shape(node, 8) for node in range(3)], {0: (0,), 1: (2,)}, affinity={0: "0-11"}))
    assert pools_of(plan) == {0: "0-15", 1: "16-23"}
    assert memory_of(plan)[0] == (0, 1)


def test_an_affinity_of_all_nodes_tells_nothing() -> None:
    plan = made(host_of([Shape(0, 8), Shape(1, 8)], dict.fromkeys(range(3), (0, 1))))
    assert pools_of(plan) == {0: "0-3", 1: "4-7", 2: "8-15"}
    assert memory_of(plan) == {0: (0,), 1: (0,), 2: (1,)}


def test_the_last_core_goes_to_whom_has_no_other_node() -> None:
    plan = made(host_of([Shape(0, 1), Shape(1, 2), Shape(2, 1)], {0: (0, 1), 1: (0,), 2: (2,)}))
    assert pools_of(plan) == {0: "1-2", 1: "0", 2: "3"}


@pytest.mark.parametrize(
    ("devices", "nodes", "pools"),
    [
        (4, 2, {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"}),
        (3, 2, {0: "0-3", 1: "4-7", 2: "8-15"}),
        (2, 4, {0: "0-15", 1: "16-31"}),
        (1, 2, {0: "0-15"}),
    ],
)
def test_unknown_places_are_spread_in_device_order(devices: int, nodes: int, pools: dict[int, str]) -> None:
    plan = made(host_of(four_nodes()[:nodes], dict.fromkeys(range(devices), ())))
    assert pools_of(plan) == pools
    assert "locality_unknown" in codes_of(plan)


def test_devices_of_unknown_place_keep_out_of_the_way_of_known_ones() -> None:
    plan = made(host_of([Shape(0, 8), Shape(1, 8)], {0: (), 1: (0,)}))
    assert pools_of(plan) == {0: "8-15", 1: "0-7"}


@pytest.mark.parametrize(
    "near", [dict.fromkeys(range(4), ()), {0: (1,), 1: (3,), 2: (5,), 3: (7,)}, {3: (6,), 2: (4,), 0: (0,), 1: (2,)}]
)
def test_where_distances_are_alike_the_other_node_of_a_pair_is_nearest(near: dict[int, tuple[int, ...]]) -> None:
    flat = {(a, b): 20 for a in range(8) for b in range(a + 1, 8)}
    plan = made(host_of([Shape(node, 2) for node in range(8)], near, distances=flat))
    assert pools_of(plan) == {0: "0-3", 1: "4-7", 2: "8-11", 3: "12-15"}


def test_the_other_node_of_a_pair_is_nearest_whatever_the_order_of_devices() -> None:
    flat = {(a, b): 20 for a in range(4) for b in range(a + 1, 4)}
    plan = made(host_of([Shape(node, 2) for node in range(4)], {0: (2,), 1: (0,)}, distances=flat))
    assert pools_of(plan) == {0: "4-7", 1: "0-3"}


def test_unknown_places_are_spread_over_sockets() -> None:
    shapes = [Shape(node, 2, socket=node % 2) for node in range(4)]
    assert pools_of(made(host_of(shapes, {0: (), 1: ()}))) == {0: "0-1,4-5", 1: "2-3,6-7"}


def test_devices_with_different_parts_of_one_node_get_their_own() -> None:
    plan = made(host_of([Shape(0, 8)], {0: (0,), 1: (0,)}, affinity={0: "4-7", 1: "0-3"}))
    assert pools_of(plan) == {0: "4-7", 1: "0-3"}


def test_runs_keep_last_level_caches_together() -> None:
    # Cores 0, 2, 4, 6 share one cache, the others another, as interleaved numbering has it.
    host = host_of([Shape(0, 8)], {0: (0,), 1: (0,)})
    host = replace(host, cpus=tuple(replace(cpu, l3=cpu.id % 2) for cpu in host.cpus))
    assert {device: set(cpus) for device, cpus in made(host).pools.items()} == {0: {0, 2, 4, 6}, 1: {1, 3, 5, 7}}


def test_nobody_gets_only_slow_cores() -> None:
    plan = made(host_of([Shape(0, 8, capacities=(1024, 1024, 400, 400))], {0: (0,), 1: (0,)}))
    assert pools_of(plan) == {0: "0-3", 1: "4-7"}
    plan = made(host_of([Shape(0, 6, capacities=(1024, 1024, 1024, 400, 400, 400))], {0: (0,), 1: (0,)}))
    assert pools_of(plan) == {0: "0-1,3", 1: "2,4-5"}


def test_turbo_bins_are_no_other_kind_of_core() -> None:
    plan = made(host_of([Shape(0, 4, capacities=(1024, 1024, 980, 980))], {0: (0,), 1: (0,)}))
    assert pools_of(plan) == {0: "0-1", 1: "2-3"}


def test_siblings_numbered_apart_stay_together() -> None:
    plan = made(host_of([Shape(0, 4, smt=2)], {0: (0,), 1: (0,)}, siblings_apart=True))
    assert pools_of(plan) == {0: "0-1,4-5", 1: "2-3,6-7"}


def test_a_mask_through_cores_leaves_what_is_allowed_of_them() -> None:
    plan = made(host_of([Shape(0, 4, smt=2)], {0: (0,), 1: (0,)}, allowed="1-4,6-7"))
    assert pools_of(plan) == {0: "1-3", 1: "4,6-7"}


def test_more_devices_than_cores_on_a_node_have_what_their_neighbour_spares() -> None:
    plan = made(host_of([Shape(0, 8), Shape(1, 8)], {0: (0,), 1: (0,), 2: (1,)}, allowed="0,8-15"))
    assert pools_of(plan) == {0: "0,14", 1: "13,15", 2: "8-12"}
    assert memory_of(plan) == {0: (0,), 1: (0,), 2: (1,)}


def test_more_devices_than_cores_on_a_node_move_to_the_next_with_room() -> None:
    plan = made(host_of([Shape(0, 8), Shape(1, 8)], {0: (0,), 1: (0,), 2: (1,)}, allowed="0,8-12"))
    assert pools_of(plan) == {0: "0", 1: "8-10", 2: "11-12"}
    assert memory_of(plan) == {0: (0,), 1: (0,), 2: (1,)}


def test_devices_of_unknown_place_move_with_their_memory() -> None:
    plan = made(host_of([Shape(0, 1), Shape(1, 8)], {0: (0,), 1: (), 2: (0,)}))
    assert {device: (len(plan.pools[device]), nodes) for device, nodes in memory_of(plan).items()} == {
        0: (2, (0,)),
        1: (5, (1,)),
        2: (2, (0,)),
    }


def test_homes_that_cannot_all_be_had_are_given_up_rather_than_a_device() -> None:
    shapes = [Shape(node, 1) for node in range(4)]
    near = {0: (0, 1), 1: (0, 2), 2: (0, 1, 2), 3: (1, 2)}
    plan = made(host_of(shapes, near))
    assert sorted(cpu for pool in plan.pools.values() for cpu in pool) == [0, 1, 2, 3]


# Processes that do not know of each other.


def test_processes_that_see_different_devices_agree() -> None:
    host = host_of(four_nodes(), {device: (device // 2,) for device in range(6)})
    everyone = made(host).pools
    for device in range(6):
        assert made(host, visible=(device,)).pools == {device: everyone[device]}


def test_visible_order_is_rank_order() -> None:
    host = host_of([Shape(0, 8)], dict.fromkeys(range(4), (0,)))
    plan = made(host, visible=(3, 1))
    assert [(worker.local_rank, worker.device) for worker in plan.workers] == [(0, 3), (1, 1)]
    assert pools_of(plan) == {3: "6-7", 1: "2-3"}
    assert [worker.device for worker in made(host, visible=(3, 1), local_rank=1).workers] == [1]


def test_one_visible_device_serves_any_rank() -> None:
    plan = made(host_of([Shape(0, 8)], {0: (0,), 1: (0,)}), visible=(1,), local_rank=3)
    assert [(worker.local_rank, worker.device) for worker in plan.workers] == [(3, 1)]
    assert "rank_beyond_visible" in codes_of(plan)


def test_hidden_devices_of_another_cpuset_take_nothing() -> None:
    plan = made(host_of(four_nodes(), {device: (device,) for device in range(4)}, allowed="0-15"), visible=(0,))
    assert pools_of(plan) == {0: "0-7"}


def test_hidden_devices_of_unknown_place_count() -> None:
    assert pools_of(made(host_of([Shape(0, 8)], {0: (), 1: ()}), visible=(1,))) == {1: "4-7"}


def test_a_visible_device_without_local_cpus_goes_to_the_nearest_node() -> None:
    host = host_of(four_nodes(), {0: (0,), 1: (3,)}, allowed="0-7,16-23")
    plan = made(host)
    assert pools_of(plan) == {0: "0-7", 1: "16-23"}
    assert memory_of(plan)[1] == (3,)
    assert plan.workers[1].why == "0 of its 8 CPUs are on its own node 3; its share is of node 2"
    found = [finding for finding in check(host, plan) if finding.code == "pool_not_local"]
    assert [finding.severity for finding in found] == ["warning"]
    assert "24-31" in found[0].remedy


# CPU workers.


def test_without_accelerators_every_node_has_a_worker() -> None:
    plan = made(host_of([Shape(0, 4), Shape(1, 0), Shape(2, 4)]))
    assert pools_of(plan) == {0: "0-3", 1: "4-7"}
    assert memory_of(plan) == {0: (0,), 1: (2,)}
    assert roles_of(plan, 1) == {"main": "4-7"}
    assert plan.devices_total == 0 and codes_of(plan) == ["no_accelerators"]


def test_workers_are_placed_where_cpus_are_allowed() -> None:
    plan = made(host_of([Shape(0, 4), Shape(1, 4)], allowed="4-6"))
    assert pools_of(plan) == {0: "4-6"}
    assert memory_of(plan) == {0: (1,)}


def test_more_workers_than_nodes_split_them() -> None:
    plan = made(host_of([Shape(0, 4), Shape(1, 8)]), workers=3)
    assert pools_of(plan) == {0: "0-3", 1: "4-7", 2: "8-11"}


def test_fewer_workers_than_nodes_have_several_with_the_memory_of_all() -> None:
    plan = made(host_of(four_nodes()), workers=2)
    assert pools_of(plan) == {0: "0-15", 1: "16-31"}
    assert memory_of(plan) == {0: (0, 1), 1: (2, 3)}


# Refusals.


def test_fewer_cores_than_devices_are_refused() -> None:
    host = host_of([Shape(0, 4, smt=2)], dict.fromkeys(range(4), (0,)), allowed="0-5")
    error = refusal(host)
    assert error.code == "insufficient_cpus" and "3 cores" in error.seen
    assert refusal(host_of([Shape(0, 4)], {0: (0,)}), reserve_cpus=4).code == "insufficient_cpus"
    assert refusal(host_of([Shape(0, 4)]), workers=5).code == "insufficient_cpus"


@pytest.mark.parametrize(
    ("demand", "code"),
    [
        ({"visible": (7, 8)}, "bad_visible_devices"),
        ({"visible": ()}, "bad_visible_devices"),
        ({"local_rank": 2}, "rank_out_of_range"),
    ],
)
def test_what_is_not_there_is_refused(demand: dict[str, Any], code: str) -> None:
    assert refusal(host_of([Shape(0, 8)], {0: (0,), 1: (0,)}), **demand).code == code


def test_visible_devices_without_accelerators_are_refused() -> None:
    assert refusal(host_of([Shape(0, 8)]), visible=(0,)).code == "bad_visible_devices"


def test_a_visible_device_that_is_not_there_is_passed_over() -> None:
    plan = made(host_of([Shape(0, 8)], {0: (0,), 1: (0,)}), visible=(7, 1, 0))
    assert [(worker.local_rank, worker.device) for worker in plan.workers] == [(0, 1), (1, 0)]
    assert "visible_missing" in codes_of(plan)


def test_an_absurd_number_of_workers_is_refused_at_once() -> None:
    assert refusal(host_of([Shape(0, 8)]), workers=10**12).code == "insufficient_cpus"
    assert refusal(host_of([Shape(0, 8)]), workers=0).code == "bad_worker_count"
    assert refusal(host_of([Shape(0, 8)], {0: (0,)}), reserve_cpus=10**12).code == "insufficient_cpus"


def test_a_map_of_npus_that_cannot_be_trusted_is_refused() -> None:
    broken = PlacementError("npu_map_duplicate", "twice", seen="0 0", wanted="once", remedy="Mend it.")
    host = host_of([Shape(0, 8)], {0: (0,)})
    assert refusal(replace(host, accelerators=replace(host.accelerators, errors=(broken,)))).code == "npu_map_duplicate"
    assert refusal(replace(host, accelerators=Accelerators(errors=(broken,)))).code == "npu_map_duplicate"


def test_other_facts_that_cannot_be_read_are_findings() -> None:
    broken = PlacementError("topo_row_unparseable", "a row is broken", seen="0-", wanted="a list", remedy="Report it.")
    host = host_of([Shape(0, 8)], {0: ()})
    plan = made(replace(host, accelerators=replace(host.accelerators, errors=(broken,))))
    assert codes_of(plan) == ["topo_row_unparseable", "locality_unknown"]


# The whole.


def test_a_plan_survives_json() -> None:
    plan = made(host_of(four_nodes(smt=2), {0: (1,), 1: (1,)}, siblings_apart=True), reserve_cpus=1)
    again = Plan.from_dict(json.loads(plan.to_json()))
    assert again.to_dict() == plan.to_dict()


def test_a_large_host_is_planned_in_milliseconds() -> None:
    host = host_of([Shape(node, 40, smt=2, socket=node // 2) for node in range(8)], dict.fromkeys(range(16), ()))
    made(host)
    start = time.process_time()
    plan = made(host)
    # 3 ms where nothing else runs; the limit leaves room for a busy machine.
    assert time.process_time() - start < 0.05
    assert {len(pool) for pool in plan.pools.values()} == {40}


@pytest.mark.parametrize("name", NAMES)
def test_recorded_hosts(name: str) -> None:
    """Real machines, with no device and with some of unknown place."""
    host = recorded_host(name)
    cores = {frozenset(core) & frozenset(host.allowance.cpus) for core in host.cores.values()} - {frozenset()}
    for count in (0, 1, 3, 8):
        chips = tuple(Accelerator("cuda", device, "chip") for device in range(count))
        there = replace(host, accelerators=Accelerators(chips))
        if count > len(cores):
            assert refusal(there).code == "insufficient_cpus"
            continue
        plan = made(there)
        taken = [cpu for pool in plan.pools.values() for cpu in pool]
        assert sorted(taken) == [cpu for cpu in host.allowance.cpus if not host.cpu_by_id[cpu].low_power]
        assert all(core <= set(pool) or core.isdisjoint(pool) for core in cores for pool in plan.pools.values())
        assert not [finding for finding in check(there, plan) if finding.severity == "error"]


@pytest.mark.skipif(
    not CASES.is_file(), reason="needs the recorded cases in ../shared/checks, which this clone does not have"
)
def test_recorded_cases() -> None:
    for case in json.loads(CASES.read_text()):
        raw = case["host"]
        commands = {
            line: CommandResult(out) if isinstance(out, str) else CommandResult(**out)
            for line, out in raw["commands"].items()
        }
        host = read_host(RecordedSource(raw["machine"], raw["files"], commands, raw["env"]))
        visible = raw["env"].get("ASCEND_RT_VISIBLE_DEVICES")
        demand = Demand(visible=None if visible is None else tuple(map(int, visible.split(","))))
        better = case.get("better") or {}
        try:
            plan = fair.plan(host, demand)
        except PlacementError as error:
            assert "error_code" in (case["expect"] or case["today"]), (case["name"], error)
            continue
        taken = [cpu for pool in plan.pools.values() for cpu in pool]
        assert len(taken) == len(set(taken)) and set(taken) <= set(host.allowance.cpus), case["name"]
        for device, cpus in (better.get("pools") or {}).items():
            # The cases are from when a device got more than its home where nobody else wanted it.
            own = local_nodes(host, next(chip for chip in host.accelerators.chips if chip.id == int(device)))
            near = [cpu for cpu in parse_cpu_list(cpus) if host.cpu_by_id[cpu].node in own]
            assert sorted(plan.pools[int(device)]) == (near if len(near) >= FEW else list(parse_cpu_list(cpus)))
        for device, node in (better.get("memory_nodes") or {}).items():
            assert memory_of(plan)[int(device)][0] == node, case["name"]
