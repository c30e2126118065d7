"""Workers on NPUs have CPUs by role, as the documented binding has them, on hosts of many shapes and beside CPU
workers.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import msgspec
import pytest

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.engine.assignment import EngineAssignment
from homenode.engine.binding import DriverRoles, EngineBinding, Replica
from homenode.engine.config import EngineConfig
from homenode.engine.devices import is_npu
from homenode.engine.plan.accelerators.driven_chips import chip_of, torch_devices
from homenode.engine.plan.placement import core_of
from homenode.engine.plan.worker_bindings import WorkerBindings, worker_places
from homenode.engine.worker.driver_roles import claims_above, given_by_launcher, target_for
from homenode.host.discovery.read import read_host
from homenode.host.plan.demand import Claim
from homenode.host.topology.host import Accelerators, Host
from homenode.testing.hosts.synthetic import synthetic

A3, PAIRS = "2s/8n/640c/arm/npu=16:A3", "2s/8n/192c/arm/npu=16:A2/allowed=144-191"
HOSTS = (
    A3,
    PAIRS,
    "2s/4n/192c/arm/npu=4:A2",
    "2s/4n/192c/arm/npu=8:A2",
    "2s/4n/64c/arm/npu=2:A2",
    "2s/2n/32c/npu=2:A2",
    "2s/2n/32c/smt2/npu=4:A2",
    "1s/1n/4c/arm/npu=1:A2",
    "1s/1n/16c/arm/npu=2:310P",
    "2s/4n/256c/npu=8:950/arm",
)


def host(spec: str, visible: str | None = None) -> Host:
    seen = read_host(synthetic(spec))
    return seen if visible is None else replace(seen, variables={"ASCEND_RT_VISIBLE_DEVICES": visible})


def places(seen: Host, devices: list[str], replica: Replica | None = None, **settings: Any) -> WorkerBindings:
    return worker_places(seen, EngineAssignment(EngineConfig.of(None, settings), replica), devices)


def npus(count: int) -> list[str]:
    return [f"torch:npu:{number}" for number in range(count)]


def roles_of(binding: EngineBinding) -> DriverRoles:
    assert binding.roles is not None
    return binding.roles


def words(binding: EngineBinding) -> list[str]:
    roles = roles_of(binding).roles
    return [format_cpu_list(roles[role]) for role in ("irq", "main", "acl", "release")]


def test_the_documented_table_of_an_a3_server_with_640_cpus() -> None:
    found = places(host(A3), npus(16))
    assert words(found.bindings[0]) == ["0-1", "2-37", "38", "39"]
    assert words(found.bindings[1]) == ["40-41", "42-77", "78", "79"]
    assert words(found.bindings[15]) == ["600-601", "602-637", "638", "639"]
    for number, binding in enumerate(found.bindings):
        roles = roles_of(binding)
        assert roles.cpus == tuple(range(40 * number, 40 * number + 40))
        assert binding.others == roles.roles["main"] and not binding.team
        mode, title, pool = roles.lines
        assert mode == f"[cpu_bind_mode] mode=global_slice rank={number} visible_npus={list(range(16))}"
        assert title == "The CPU allocation plan is as follows:"
        first = 40 * number
        assert pool == (
            f"NPU{number}: main={list(range(first + 2, first + 38))} acl=[{first + 38}] release=[{first + 39}]"
        )
    apart = {cpu for n in range(16) for cpu in (40 * n, 40 * n + 1, 40 * n + 38, 40 * n + 39)}
    assert found.loop and apart.isdisjoint(found.loop), "front and scheduler keep off what is set apart"


@pytest.mark.parametrize(("visible", "pool"), [("12", "144-167"), ("13", "168-191")])
def test_the_documented_example_of_two_services_that_each_see_one_npu(visible: str, pool: str) -> None:
    found = places(host(PAIRS, visible), npus(1))
    worker = roles_of(found.bindings[0])
    assert format_cpu_list(worker.cpus) == pool and worker.device == int(visible)
    assert roles_of(found.bindings[0]).lines[0] == f"[cpu_bind_mode] mode=topo_affinity rank=0 visible_npus=[{visible}]"


def test_each_of_several_engines_has_the_pool_that_it_would_have_among_the_workers_of_one() -> None:
    seen = host(A3)
    whole = places(seen, npus(4))
    for number in range(4):
        replica = Replica(number, 4, EngineBinding(tuple(range(160 * number, 160 * number + 160))))
        alone = places(seen, [f"torch:npu:{number}"], replica)
        assert roles_of(alone.bindings[0]).cpus == roles_of(whole.bindings[number]).cpus


@pytest.mark.parametrize("spec", HOSTS)
@pytest.mark.parametrize("cpu_workers", [0, 1, 2])
@pytest.mark.parametrize("settings", [{}, {"numa_bind": True}])
def test_every_npu_has_roles_that_nobody_else_is_on(spec: str, cpu_workers: int, settings: dict[str, Any]) -> None:
    seen = host(spec)
    for count in {1, len(seen.accelerators.chips)}:
        if len(seen.allowance.physical_cpus) < 5 * count + cpu_workers + 2:
            continue
        devices = [*npus(count), *["cpu"] * cpu_workers]
        found = places(seen, devices, **settings)
        pools = [set(roles_of(b).cpus) for b, device in zip(found.bindings, devices, strict=True) if is_npu(device)]
        assert all(one.isdisjoint(other) for one, other in combinations(pools, 2))
        computing = {core_of(seen, cpu) for binding in found.bindings for cpu in binding.team}
        apart: set[int] = set()
        for pool, binding in zip(pools, found.bindings, strict=False):
            roles = roles_of(binding).roles
            assert pool <= set(seen.allowance.cpus) and not {core_of(seen, cpu) for cpu in pool} & computing
            assert set(binding.others) == set(roles["main"]) <= pool
            if "acl" in roles and len(pool) >= 5:
                each = [set(cpus) for cpus in roles.values()]
                assert all(one.isdisjoint(other) for one, other in combinations(each, 2))
                apart |= pool - set(roles["main"])
        assert not apart & set(found.loop)
        assert all("mask" not in finding.message for finding in found.findings)


def test_numa_bind_alone_is_the_binding_and_its_lists_are_pools() -> None:
    seen = host(A3)
    bound, plain = places(seen, npus(2), numa_bind=True), places(seen, npus(2))
    assert bound.bindings == plain.bindings
    listed = places(seen, npus(2), numa_bind=True, numa_bind_nodes=(3, 3))
    assert [format_cpu_list(roles_of(binding).cpus) for binding in listed.bindings] == ["240-279", "280-319"]
    assert [binding.memory_nodes for binding in listed.bindings] == [(3,), (3,)]
    cpus = places(seen, npus(2), numa_bind=True, numa_bind_nodes=(3, 4), numa_bind_cpus=("240-249", "320-331"))
    assert [format_cpu_list(roles_of(binding).cpus) for binding in cpus.bindings] == ["240-249", "320-331"]


def test_few_cpus_are_shared_and_that_is_told() -> None:
    found = places(host("1s/1n/4c/arm/npu=1:A2"), [*npus(1), "cpu"])
    assert "roles_shared" in {finding.code for finding in found.findings}
    assert set(words(found.bindings[0])) and roles_of(found.bindings[0]).roles["acl"]


def test_the_variable_says_which_npu_a_device_is() -> None:
    seen = host(PAIRS, "13,12")
    assert [chip.id for chip in torch_devices(seen).values()] == [13, 12]
    chip = chip_of(seen, "torch:npu:1")
    assert chip is not None and chip.id == 12
    assert chip_of(seen, "torch:npu:2") is None
    found = places(seen, npus(2))
    assert [roles_of(binding).device for binding in found.bindings] == [13, 12]
    gpus = replace(read_host(synthetic("2s/2n/32c/gpu=2")), variables={"CUDA_VISIBLE_DEVICES": "1"})
    near = worker_places(gpus, EngineAssignment(EngineConfig.of(None, {})), ["torch:cuda:0"]).bindings[0]
    assert near.memory_nodes == (1,), "cuda:0 is the second card"


def test_npus_that_npu_smi_does_not_tell_of_are_named() -> None:
    found = places(replace(host(A3), accelerators=Accelerators()), npus(2))
    (told,) = [finding for finding in found.findings if finding.code == "npu_not_listed"]
    assert "npu:0, npu:1" in told.message and "acl" in told.message
    assert all(binding.roles is None for binding in found.bindings)


def test_a_worker_is_told_all_of_it() -> None:
    binding = places(host(A3), npus(2)).bindings[1]
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(binding), type=EngineBinding)
    assert again == binding
    target = target_for(roles_of(again), lambda chip: None)
    assert target.cpus == parse_cpu_list("42-77")
    assert target.threads == {"acl_thread": (78,), "release_thread": (79,), "ucm_": parse_cpu_list("60-77")}
    assert [route.cpus for route in target.irqs] == [(40,), (41,)]


def test_an_address_that_the_plan_does_not_know_is_asked_for() -> None:
    roles = DriverRoles(3, (0, 1), {"irq": (0,), "main": (1,)}, card=1, chip=1)
    target = target_for(roles, lambda chip: f"0000:0{chip.card}:00.{chip.chip}")
    assert {route.address for route in target.irqs} == {"0000:01:00.1"}
    assert target_for(roles, lambda chip: None).irqs == ()


def test_who_is_bound_by_homenode_run() -> None:
    claims = (Claim(10, (0, 1), (3,), "fair"), Claim(11, (2,), (4,), "", computes=True), Claim(12, (5,), (5,), "fair"))
    above = claims_above(claims, (10, 11))
    assert above == claims[:1]
    assert given_by_launcher(above, 3) and not given_by_launcher(above, 4) and not given_by_launcher((), 3)
