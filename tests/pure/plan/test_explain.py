"""A plan in plain lines."""

from __future__ import annotations

from homenode.host.plan.demand import Demand
from homenode.host.plan.explain import explain
from homenode.host.plan.plan import Plan, ProcessBinding, WorkerBinding
from homenode.host.plan.policies import fair
from homenode.host.topology.finding import Finding
from tests.host_values import Shape, host_of


def test_a_device_with_a_part_of_two_nodes() -> None:
    host = host_of([Shape(0, 8, l3=4), Shape(1, 4)], {0: (0,)}, allowed="4-11")
    assert explain(host, fair.plan(host, Demand(reserve_cpus=1))) == [
        "strategy fair: 1 device, 1 to place; 8 CPUs allowed: 4-11",
        "",
        "rank 0, device 0 (chip, 0000:00:00.0): 5 CPUs 4-8",
        "  node 0 (its own): 4 of its 4 allowed CPUs: 4-7; L3 caches: 1 whole, 0 in part",
        "  node 1 (distance 12): 1 of its 4 allowed CPUs: 8",
        "  irq: 4,8",
        "  main: 5",
        "  acl: 6",
        "  release: 7",
        "  memory: node 0 (its own), 64GiB",
        "  why: 4 of its 5 CPUs are on its own node 0",
        "",
        "reserved: 1 CPU 11",
        "  node 1: 1 of its 4 allowed CPUs: 11",
        "  memory: node 1, 64GiB",
        "  why: 1 core kept back for API server, tokenizer, scheduler and KV transfer",
    ]


def test_a_cpu_worker_a_process_left_alone_and_a_finding() -> None:
    host = host_of([Shape(0, 2), Shape(1, 2)])
    workers = (
        WorkerBinding(0, 0, (0, 1), {"main": (0, 1)}, (0, 1), "as asked"),
        WorkerBinding(1, 1, (), {}, (), "nobind", bound=False),
    )
    findings = (
        Finding("warning", "some_code", "something is odd", "Mend it."),
        Finding("info", "other_code", "as you know."),
    )
    plan = Plan("cpu-threads", 0, (), {0: (0, 1)}, workers, (ProcessBinding("engine", (), (), "it floats"),), findings)
    assert explain(host, plan) == [
        "strategy cpu-threads: 0 devices, 2 to place; 4 CPUs allowed: 0-3",
        "",
        "rank 0, CPU worker 0: 2 CPUs 0-1",
        "  node 0 (its own): 2 of its 2 allowed CPUs: 0-1",
        "  main: 0-1",
        "  memory: node 0 (its own), 64GiB; then node 1 (distance 12), 64GiB",
        "  why: as asked",
        "",
        "rank 1, CPU worker 1: not bound",
        "  why: nobind",
        "",
        "engine: not bound",
        "  why: it floats",
        "",
        "warning some_code: something is odd. Mend it.",
        "info other_code: as you know.",
    ]


def test_a_plan_made_elsewhere_is_explained_as_far_as_it_can_be() -> None:
    host = host_of([Shape(0, 2)], {0: (0,)})
    worker = WorkerBinding(0, 9, (0, 40), {"main": (0, 40)}, (7,), "from another host")
    assert explain(host, Plan("fair", 1, (9,), {9: (0, 40)}, (worker,)))[2:] == [
        "rank 0, device 9: 2 CPUs 0,40",
        "  node 0: 1 of its 2 allowed CPUs: 0",
        "  main: 0,40",
        "  memory: node 7",
        "  why: from another host",
    ]
