"""`fair` by example: where memory comes from, which role is on which core, what is kept back and what others hold
already.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.check import check
from homenode.host.plan.demand import Claim, Demand
from homenode.host.plan.plan import Plan
from homenode.host.plan.policies import fair
from homenode.host.topology.host import Accelerators, Host
from tests.host_values import Shape, host_of
from tests.pools import codes_of, memory_of, pools_of, roles_of


def made(host: Host, **demand: Any) -> Plan:
    return fair.plan(host, Demand(**demand))


# Memory.


def test_a_home_without_memory_takes_the_nearest() -> None:
    shapes = [Shape(0, 4), Shape(1, 4, memory=0), Shape(2, 4), Shape(3, 0)]
    host = host_of(shapes, {0: (1,)}, distances={(0, 1): 20, (1, 2): 16, (1, 3): 16})
    assert memory_of(made(host)) == {0: (2,)}
    assert [finding.code for finding in check(host, made(host))] == ["pool_not_local", "memory_remote"]


def test_memory_that_is_not_allowed_is_not_planned_for() -> None:
    assert memory_of(made(host_of([Shape(node, 8) for node in range(4)], {0: (0,)}, mems=(1, 2)))) == {0: (1,)}


def test_an_accelerators_own_memory_is_no_place_for_a_process() -> None:
    host = host_of([Shape(0, 4, memory=0), Shape(1, 0), Shape(2, 4, socket=1)], {0: (0,)}, kind="cuda")
    chips = tuple(replace(chip, memory_node=1) for chip in host.accelerators.chips)
    assert memory_of(made(replace(host, accelerators=Accelerators(chips)))) == {0: (2,)}


def test_a_host_without_nodes_binds_no_memory() -> None:
    host = host_of([Shape(0, 6)], {0: (), 1: ()})
    host = replace(host, nodes=(), cpus=tuple(replace(cpu, node=None) for cpu in host.cpus))
    plan = made(host)
    assert pools_of(plan) == {0: "0-2", 1: "3-5"}
    assert memory_of(plan) == {0: (), 1: ()}


# Roles.


def test_roles_of_an_npu() -> None:
    assert roles_of(made(host_of([Shape(0, 8)], {0: (0,)}))) == {
        "irq": "0-1",
        "main": "2-5",
        "acl": "6",
        "release": "7",
    }


def test_roles_of_an_npu_lie_on_its_own_node() -> None:
    roles = roles_of(made(host_of([Shape(0, 8), Shape(1, 8)], {0: (1,)})))
    assert roles == {"irq": "8-9", "main": "10-13", "acl": "14", "release": "15"}


def test_interrupts_leave_a_home_that_is_too_small_to_the_process() -> None:
    roles = roles_of(made(host_of([Shape(0, 8), Shape(1, 3)], {0: (1,)})))
    assert roles == {"irq": "0-1", "main": "8", "acl": "9", "release": "10"}
    roles = roles_of(made(host_of([Shape(0, 8), Shape(1, 1)], {0: (1,)}, kind="cuda")))
    assert roles == {"irq": "0", "main": "1-3,8"}


def test_dispatch_is_on_fast_cores_and_interrupts_on_slow_ones() -> None:
    roles = roles_of(made(host_of([Shape(0, 8, capacities=(1024, 1024, 400, 400))], {0: (0,)})))
    assert roles == {"irq": "2-3", "main": "0-1,6-7", "acl": "4", "release": "5"}


def test_with_siblings_the_driver_threads_have_whole_cores() -> None:
    roles = roles_of(made(host_of([Shape(0, 6, smt=2)], {0: (0,)})))
    assert roles == {"irq": "0-1", "main": "2-7", "acl": "8-9", "release": "10-11"}


def test_with_few_cores_the_driver_threads_have_one_cpu_each_on_cores_of_their_own() -> None:
    roles = roles_of(made(host_of([Shape(0, 3, smt=2)], {0: (0,)})))
    assert roles == {"irq": "0-1", "main": "2,4", "acl": "3", "release": "5"}


def test_roles_overlap_in_a_small_pool() -> None:
    plan = made(host_of([Shape(0, 4)], {0: (0,)}))
    assert roles_of(plan) == {"irq": "0-1", "main": "0-3", "acl": "2", "release": "3"}
    assert codes_of(plan) == ["roles_shared"]
    assert roles_of(made(host_of([Shape(0, 1)], {0: (0,)}))) == {"irq": "0", "main": "0", "acl": "0", "release": "0"}


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
def test_roles_of_a_gpu(kind: str) -> None:
    assert roles_of(made(host_of([Shape(0, 8)], {0: (0,)}, kind=kind))) == {"irq": "0", "main": "1-7"}
    assert roles_of(made(host_of([Shape(0, 2)], {0: (0,)}, kind=kind))) == {"irq": "0", "main": "0-1"}


# The reserve.


def test_reserved_cores_come_from_the_largest_pools() -> None:
    plan = made(host_of([Shape(0, 8), Shape(1, 8)], {0: (0,), 1: (0,), 2: (1,)}), reserve_cpus=3)
    assert [(place.name, format_cpu_list(place.cpus), place.memory_nodes) for place in plan.processes] == [
        ("reserved", "13-15", (1,))
    ]
    assert pools_of(plan) == {0: "0-3", 1: "4-7", 2: "8-12"}


def test_reserved_cores_are_the_farthest_and_the_slowest_there() -> None:
    plan = made(host_of([Shape(0, 4), Shape(1, 4, capacities=(500, 1024))], {0: (0,)}), reserve_cpus=2)
    assert [format_cpu_list(place.cpus) for place in plan.processes] == ["4,6"]


def test_a_reserve_leaves_home_alone_even_where_home_is_slow() -> None:
    plan = made(host_of([Shape(0, 4, capacities=(500,)), Shape(1, 4)], {0: (0,)}), reserve_cpus=1)
    assert [place.cpus for place in plan.processes] == [(7,)]


def test_a_reserve_takes_nothing_from_devices_of_others() -> None:
    host = host_of([Shape(0, 8)], {0: (0,), 1: (0,)})
    plan = made(host, visible=(0,), reserve_cpus=2)
    assert pools_of(plan) == {0: "0-1"} and [place.cpus for place in plan.processes] == [(2, 3)]
    assert pools_of(made(host, visible=(1,))) == {1: "4-7"}


def test_reserved_cores_are_physical() -> None:
    plan = made(host_of([Shape(0, 4, smt=2)], {0: (0,)}, siblings_apart=True), reserve_cpus=1)
    assert [place.cpus for place in plan.processes] == [(3, 7)]
    assert pools_of(plan) == {0: "0-2,4-6"}


# Claims.


def test_cores_that_others_hold_are_left_out_whole() -> None:
    host = host_of([Shape(0, 4, smt=2)], {0: (0,), 1: (0,)})
    plan = made(host, visible=(0,), claims=(Claim(77, (1, 4), (1,), "engine"),))
    assert pools_of(plan) == {0: "2-3"}
    (finding,) = [finding for finding in plan.findings if finding.code == "claim_overlap"]
    assert finding.severity == "warning" and "77 (engine)" in finding.message and "0-1" in finding.message


def test_a_claim_for_the_same_device_is_no_obstacle() -> None:
    host = host_of([Shape(0, 4)], {0: (0,), 1: (0,)})
    assert pools_of(made(host, visible=(0,), claims=(Claim(77, (0, 1), (0,)),))) == {0: "0-1"}


def test_a_pool_that_is_claimed_entirely_is_refused() -> None:
    with pytest.raises(PlacementError) as caught:
        made(host_of([Shape(0, 4)], {0: (0,)}), claims=(Claim(77, (0, 1)), Claim(78, (2, 3))))
    assert caught.value.code == "insufficient_cpus" and "78" in caught.value.remedy


def test_ranks_of_cpu_workers_that_are_started_one_by_one_keep_to_one_cut() -> None:
    host = host_of([Shape(0, 4), Shape(1, 4)])
    together = made(host, workers=2)
    first = made(host, workers=2, local_rank=0)
    second = made(host, workers=2, local_rank=1, claims=(Claim(77, first.workers[0].cpus),))
    assert [worker.cpus for worker in (*first.workers, *second.workers)] == list(together.pools.values())
    assert codes_of(second) == ["no_accelerators"]
    again = made(host, workers=2, local_rank=0, claims=(Claim(77, first.workers[0].cpus),))
    assert set(again.workers[0].cpus).isdisjoint(first.workers[0].cpus), "another engine's first rank"


def test_cpu_workers_are_planned_around_claims() -> None:
    plan = made(host_of([Shape(0, 4), Shape(1, 4)]), claims=(Claim(77, (0, 1)),), workers=2)
    assert pools_of(plan) == {0: "2-3", 1: "4-7"}
    assert codes_of(plan) == ["no_accelerators", "claim_overlap"]
