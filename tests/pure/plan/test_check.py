"""What is found in a plan, each finding brought about by a plan and a host that deserve it, and left out where they do
not.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from homenode.host.plan.check import check
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan, ProcessBinding, WorkerBinding
from homenode.host.plan.policies import fair, global_slice, topo_affinity
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Host
from tests.host_values import Shape, host_of

TWO_NODES = [Shape(0, 8), Shape(1, 8)]
NEAR = {0: (0,), 1: (1,)}


def plan_of(pools: dict[int, tuple[int, ...]], memory: dict[int, tuple[int, ...]] | None = None, **more: Any) -> Plan:
    workers = [
        WorkerBinding(rank, device, cpus, {"main": cpus}, (memory or {}).get(device, ()), "")
        for rank, (device, cpus) in enumerate(pools.items())
    ]
    return Plan(
        **{
            "strategy": "topo-affinity",
            "devices_total": 2,
            "devices_running": tuple(pools),
            "pools": pools,
            "workers": tuple(workers),
            **more,
        }
    )


def found(host: Host, plan: Plan, code: str) -> list[Finding]:
    return [finding for finding in check(host, plan) if finding.code == code]


def one(host: Host, plan: Plan, code: str) -> Finding:
    (finding,) = found(host, plan, code)
    assert finding.remedy
    return finding


def span(first: int, last: int) -> tuple[int, ...]:
    return tuple(range(first, last + 1))


def test_a_plan_without_trouble_has_no_findings() -> None:
    host = host_of(TWO_NODES, NEAR)
    assert check(host, fair.plan(host, Demand())) == ()


@pytest.mark.parametrize(
    ("strategy", "severity"), [("fair", "error"), ("topo-affinity", "warning"), ("numa-bind", "info")]
)
def test_pools_that_overlap(strategy: str, severity: str) -> None:
    host = host_of(TWO_NODES, NEAR)
    finding = one(host, plan_of({0: span(0, 7), 1: span(6, 13)}, strategy=strategy), "pools_overlap")
    assert finding.severity == severity and "devices 0, 1 share 6-7" in finding.message
    assert not found(host, plan_of({0: span(0, 7), 1: span(8, 15)}, strategy=strategy), "pools_overlap")


def test_the_reserve_of_fair_overlaps_nobody() -> None:
    host = host_of(TWO_NODES, NEAR)
    plan = plan_of(
        {0: span(0, 7), 1: span(8, 15)}, strategy="fair", processes=(ProcessBinding("reserved", (15,), (), ""),)
    )
    assert "devices 1, reserved share 15" in one(host, plan, "pools_overlap").message


def test_many_overlaps_are_one_finding_of_bounded_length() -> None:
    near = dict.fromkeys(range(12), (0,))
    pools = {device: (device, (device + 1) % 12) for device in near}
    message = one(host_of([Shape(0, 12)], near), plan_of(pools), "pools_overlap").message
    assert message.endswith("and 4 more")


def test_the_documented_pools_of_a_ring_overlap() -> None:
    host = host_of([Shape(node, 12) for node in range(4)], {device: (device // 2,) for device in range(8)})
    assert one(host, topo_affinity.plan(host, Demand(before_start=True)), "pools_overlap").severity == "warning"
    assert not found(host, fair.plan(host, Demand()), "pools_overlap")


def test_cpus_that_are_not_allowed() -> None:
    host = host_of(TWO_NODES, NEAR, allowed="0-7")
    finding = one(host, plan_of({0: span(0, 7), 1: span(7, 9)}), "outside_allowance")
    assert finding.severity == "error" and "8-9" in finding.message
    assert found(host, plan_of({0: (0,)}, processes=(ProcessBinding("engine", (12,), (), ""),)), "outside_allowance")


def test_a_process_that_is_left_alone_has_no_findings() -> None:
    host = host_of(TWO_NODES, NEAR, allowed="0-7", quota=1.0)
    plan = plan_of({0: span(8, 15)}, {0: (7,)})
    assert (
        check(
            host, replace(plan, workers=tuple(replace(worker, bound=False) for worker in plan.workers), devices_total=0)
        )
        == ()
    )


@pytest.mark.parametrize(("mems", "memory", "named"), [((0,), (1,), "1"), ((), (0, 5), "5")])
def test_memory_that_cannot_be_had(mems: tuple[int, ...], memory: tuple[int, ...], named: str) -> None:
    host = host_of(TWO_NODES, NEAR, mems=mems)
    finding = one(host, plan_of({0: span(0, 7)}, {0: memory}), "memory_node_not_allowed")
    assert finding.severity == "error" and f"nodes {named};" in finding.message


def test_siblings_in_different_pools() -> None:
    host = host_of([Shape(0, 8, smt=2)], {0: (0,), 1: (0,)}, siblings_apart=True)
    finding = one(host, global_slice.plan(host, Demand(before_start=True)), "smt_siblings_split")
    assert finding.severity == "warning" and "CPUs 0-15 between devices 0-1" in finding.message
    assert not found(host, fair.plan(host, Demand()), "smt_siblings_split")


def test_the_same_whole_core_in_two_pools_is_an_overlap_and_no_split() -> None:
    host = host_of([Shape(0, 4, smt=2)], {0: (0,), 1: (0,)})
    plan = plan_of({0: span(0, 3), 1: span(0, 3)})
    assert found(host, plan, "pools_overlap") and not found(host, plan, "smt_siblings_split")


def test_none_and_few_local_cpus_are_told_apart() -> None:
    host = host_of(TWO_NODES, NEAR)
    none, few = found(host, plan_of({0: span(8, 15), 1: (0, 1, 2, 8)}), "pool_not_local")
    assert none.severity == few.severity == "warning" and "fair" in none.remedy
    assert "none of the 8 CPUs of device 0" in none.message and "1 of the 4 CPUs of device 1 is on" in few.message
    assert all("at distance 12, 1.2 times as far as from home" in finding.message for finding in (none, few))
    assert "CPUs 8-15 reach" in none.message and "CPUs 0-2 reach" in few.message
    assert not found(host, plan_of({0: span(0, 7), 1: span(8, 15)}), "pool_not_local")


def test_a_distance_that_nobody_tells_is_no_figure() -> None:
    host = host_of(TWO_NODES, NEAR, distances={(0, 1): 255})
    (finding,) = found(host, plan_of({0: (0, 8), 1: span(9, 15)}), "pool_not_local")
    assert "CPUs 8 reach the device and its memory over a way of unknown length" in finding.message


def test_memory_far_from_its_device() -> None:
    host = host_of(TWO_NODES, NEAR)
    finding = one(host, plan_of({0: span(0, 7), 1: span(8, 15)}, {0: (0,), 1: (0,)}), "memory_remote")
    assert finding.severity == "warning" and "device 1" in finding.message and "distance 12" in finding.message


def test_the_remedy_for_remote_memory_names_its_reason() -> None:
    without = host_of([Shape(0, 8), Shape(1, 8, memory=0)], NEAR)
    assert "no memory of its own" in one(without, fair.plan(without, Demand(visible=(1,))), "memory_remote").remedy
    forbidden = host_of(TWO_NODES, NEAR, mems=(0,))
    assert "cpuset.mems" in one(forbidden, fair.plan(forbidden, Demand(visible=(1,))), "memory_remote").remedy


def test_memory_of_cpu_workers_is_compared_with_their_cpus() -> None:
    host = host_of(TWO_NODES)
    assert (
        "memory of CPU worker 0"
        in one(host, plan_of({0: span(0, 7)}, {0: (1,)}, devices_total=0), "memory_remote").message
    )
    assert not found(host, plan_of({0: span(0, 7)}, {0: (0,)}, devices_total=0), "memory_remote")


def test_a_quota_below_the_pools() -> None:
    plan = plan_of({0: span(0, 7), 1: span(8, 15)})
    finding = one(host_of(TWO_NODES, NEAR, quota=4.5), plan, "quota_below_pool")
    assert finding.severity == "warning" and "4.5" in finding.message and "at most 4 threads" in finding.remedy
    assert not found(host_of(TWO_NODES, NEAR, quota=16.0), plan, "quota_below_pool")


def test_isolated_cpus() -> None:
    finding = one(host_of(TWO_NODES, NEAR, isolated=(7, 8)), plan_of({0: span(0, 7)}), "isolated_cpus")
    assert "CPUs 7 " in finding.message


def test_uneven_pools() -> None:
    host = host_of(TWO_NODES, NEAR)
    assert (
        "device 1 has 4 CPUs, device 0 has 8"
        in one(host, plan_of({0: span(0, 7), 1: span(8, 11)}), "pools_uneven").message
    )
    assert not found(host, plan_of({0: span(0, 7), 1: span(8, 14)}), "pools_uneven")


def test_automatic_balancing_matters_with_several_nodes() -> None:
    plan = plan_of({0: span(0, 7)})
    assert one(host_of(TWO_NODES, NEAR, numa_balancing=True), plan, "numa_balancing_on").severity == "info"
    assert not found(host_of([Shape(0, 8)], {0: (0,)}, numa_balancing=True), plan, "numa_balancing_on")
    assert not found(host_of(TWO_NODES, NEAR), plan, "numa_balancing_on")


def test_a_mask_by_accident() -> None:
    host = host_of(TWO_NODES, NEAR, allowed="0")
    accident = replace(host.allowance, mask_origin="openmp", beyond_accident=((0, 1), (0, 1)))
    assert one(replace(host, allowance=accident), plan_of({0: (0,)}), "mask_by_accident").severity == "warning"
    assert not found(host, plan_of({0: (0,)}), "mask_by_accident")
