"""What `fair` promises on any host: many-socket, sparse, uneven, with offline CPUs, masks through cores, hidden and
unlocated devices.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.discovery.read import read_host
from homenode.host.plan.check import check
from homenode.host.plan.demand import Claim, Demand
from homenode.host.plan.explain import explain
from homenode.host.plan.plan import Plan
from homenode.host.plan.policies import fair, topo_affinity
from homenode.host.plan.resources.cores import NO_NODE, allowed_cores
from homenode.host.plan.resources.device_nodes import gap, local_nodes
from homenode.host.plan.resources.share import FEW
from homenode.host.topology.finding import Finding
from homenode.host.topology.host import Accelerator, Accelerators, Host
from homenode.testing.hosts.synthetic import synthetic
from tests.examples import examples
from tests.host_values import Shape, host_of, local_cpus
from tests.recorded import NAMES, recorded_host

SYNTHETIC = (
    "2s/4n/64c/smt2/gpu=1",
    "2s/4n/64c/smt2/gpu=3",
    "2s/4n/64c/smt2/gpu=8",
    "4s/4n/80c/gpu=2",
    "2s/8n/96c/gpu=1:amd",
    "2s/8n/192c/arm/npu=2:A2",
    "2s/8n/640c/arm/npu=16:A3",
    "2s/4n/64c/smt2/gpu=2/ids=0,1,8,9",
    "2s/4n/32c/gpu=1/numbering=round",
    "2s/2n/32c/gpu=1/allowed=0-11,16-31",
    "2s/8n/24c/gpu=1",
    "2s/8n/24c/gpu=4",
    "2s/8n/24c/gpu=16",
    "2s/4n/32c/gpu=1/allowed=0,8-31",
    "2s/4n/32c/gpu=4/allowed=0,8-31",
    "1s/1n/8c/gpu=2",
    "1s/0n/8c/gpu=2",
)

quick = settings(deadline=None, derandomize=True, max_examples=examples(120))


@st.composite
def shapes(draw: st.DrawFn, cores: tuple[int, ...] = (0, 1, 3, 4, 8, 12)) -> list[Shape]:
    ids = sorted(draw(st.sets(st.integers(0, 20), min_size=1, max_size=6)))
    smt = draw(st.sampled_from([1, 1, 2, 4]))
    sockets = draw(st.integers(1, 3))
    capacities = draw(st.sampled_from([(1024,), (1024, 700), (1024, 1000, 400)]))
    l3 = draw(st.sampled_from([0, 2, 4]))
    counts = [draw(st.sampled_from(cores)) for _ in ids]
    counts[draw(st.integers(0, len(ids) - 1))] = max(cores)
    memories = [draw(st.sampled_from([0, 1 << 30, 1 << 30])) for _ in ids]
    rows = enumerate(zip(ids, counts, memories, strict=True))
    return [
        Shape(node, count, smt, at * sockets // len(ids), memory, l3, capacities) for at, (node, count, memory) in rows
    ]


@st.composite
def hosts(draw: st.DrawFn) -> Host:
    made = draw(shapes())
    total = sum(shape.cores * shape.smt for shape in made)
    several = st.sets(st.sampled_from([shape.id for shape in made]), max_size=3).map(lambda nodes: tuple(sorted(nodes)))
    one = st.sampled_from([shape.id for shape in made if shape.cores]).map(lambda node: (node,))
    first = draw(st.sampled_from([0, 0, 4]))
    near = {first + number: draw(st.one_of(one, several)) for number in range(draw(st.integers(0, 8)))}
    allowed = format_cpu_list(draw(st.sets(st.integers(0, total - 1), min_size=1))) if draw(st.booleans()) else None
    offline = sorted(draw(st.sets(st.integers(1, total), max_size=min(3, total - 1))))
    mems = sorted(draw(st.sets(st.sampled_from([shape.id for shape in made]), max_size=3)))
    kind = draw(st.sampled_from(["npu", "cuda", "rocm"]))
    return host_of(
        made, near, kind=kind, allowed=allowed, offline=offline, siblings_apart=draw(st.booleans()), mems=mems
    )


@st.composite
def roomy_hosts(draw: st.DrawFn) -> Host:
    """Every device has a place, a node or the same pair of nodes as its neighbours, with five CPUs for each device
    there, and all CPUs are allowed.

    What the documented rule is made for, and where shares can be promised.
    """
    made = draw(shapes(cores=(0, 20, 22, 27)))
    computing = [shape.id for shape in made if shape.cores]
    paired = draw(st.booleans())
    places = (
        [tuple(computing[at : at + 2]) for at in range(0, len(computing), 2)]
        if paired
        else [(node,) for node in computing]
    )
    near = {device: draw(st.sampled_from(places)) for device in range(draw(st.integers(1, 4)))}
    return host_of(made, near, siblings_apart=draw(st.booleans()))


def planned(host: Host, demand: Demand) -> Plan:
    """The plan; a refusal ends the example, after a look at whether it says everything."""
    try:
        return fair.plan(host, demand)
    except PlacementError as error:
        assert error.code and error.remedy and error.seen and error.wanted
        assert error.code == "insufficient_cpus"
        raise


def plan_or_none(host: Host, demand: Demand) -> Plan | None:
    try:
        return planned(host, demand)
    except PlacementError:
        return None


def local_count(host: Host, device: int, pool: tuple[int, ...]) -> int:
    return len(local_cpus(host, near_of(host)[device]).intersection(pool))


def share_of(host: Host, device: int) -> int:
    """CPUs of an equal part, in whole cores, of each of its nodes."""
    near = near_of(host)
    cores = allowed_cores(host)
    width = max(map(len, host.cores.values()))
    return sum(len(cores[node]) // sum(node in own for own in near.values()) * width for node in near[device])


def near_of(host: Host) -> Mapping[int, tuple[int, ...]]:
    return {chip.id: local_nodes(host, chip) for chip in host.accelerators.chips}


def device_named(finding: Finding) -> int:
    match = re.search(r"of device (\d+)", finding.message)
    assert match is not None, finding
    return int(match[1])


def check_locality(host: Host, plan: Plan) -> None:
    """A pool leaves its device's own nodes only where its part of them has fewer than FEW CPUs, and then for as few
    CPUs of as near nodes as will do; and for each such pool there is a warning with the distance."""
    near = {device: own for device, own in near_of(host).items() if own and device in plan.pools}
    cores = allowed_cores(host)
    width = max(map(len, host.cores.values()))
    told = {device_named(finding): finding for finding in check(host, plan) if finding.code == "pool_not_local"}
    cpus = [cpu for own in cores.values() for core in own for cpu in core.cpus]
    spare = set(cpus).difference(*plan.pools.values())
    for device, own in near.items():
        pool = plan.pools[device]
        home = local_cpus(host, own)
        far = [cpu for cpu in pool if cpu not in home]
        assert (device in told) == bool(far)
        if len(pool) < FEW:
            assert not spare, "a free CPU beside a pool that is too small"
            assert all(len(other) < FEW + width for d, other in plan.pools.items() if d != device)
        if not far:
            continue
        assert told[device].severity == "warning"
        assert "distance" in told[device].message or "unknown" in told[device].message
        if not any(node in cores for node in own) or len(pool) == len(far):
            continue  # a home that is not allowed is replaced by a whole node
        assert len(pool) < FEW + width, (pool, home)
        assert share_of(host, device) < FEW
        ways = {cpu: gap(host, own, NO_NODE if (node := host.cpu_by_id[cpu].node) is None else node) for cpu in cpus}
        assert all(ways[cpu] >= max(ways[one] for one in far) for cpu in spare), "a nearer CPU is free"


@quick
@given(hosts(), st.integers(0, 3), st.none() | st.integers(1, 9))
def test_pools_are_disjoint_whole_cores_inside_the_allowance(host: Host, reserve: int, workers: int | None) -> None:
    plan = plan_or_none(host, Demand(reserve_cpus=reserve, workers=workers))
    cores = [core for found in allowed_cores(host).values() for core in found]
    devices = len(host.accelerators.chips)
    if plan is None:
        assert len(cores) < (devices or workers or 1) + reserve or (not devices and workers is None)
        return
    pools = [*plan.pools.values(), *(place.cpus for place in plan.processes)]
    taken = [cpu for pool in pools for cpu in pool]
    assert all(pools) and len(taken) == len(set(taken)) and set(taken) <= set(host.allowance.cpus)
    for core in cores:
        assert all(set(core.cpus) <= set(pool) or not set(core.cpus) & set(pool) for pool in pools)
    assert sum(core.cpus[0] in place.cpus for core in cores for place in plan.processes) == reserve
    if not any(near_of(host).values()):
        assert set(taken) == {cpu for core in cores for cpu in core.cpus}


@quick
@given(hosts(), st.tuples(st.integers(0, 2), st.integers(0, 2)), st.data())
def test_processes_that_see_different_devices_agree(host: Host, reserves: tuple[int, int], data: st.DataObject) -> None:
    # A device without any allowed CPU of its own takes part only where it is asked for; of such devices nothing is
    # promised.
    nodes = set(allowed_cores(host))
    placeable = [device for device, own in near_of(host).items() if not own or nodes.intersection(own)]
    assume(placeable)
    some = st.lists(st.sampled_from(placeable), min_size=1, unique=True).map(tuple)
    first, second = data.draw(some), data.draw(some)
    here, there = (
        plan_or_none(host, Demand(visible=seen, reserve_cpus=kept))
        for seen, kept in zip((first, second), reserves, strict=True)
    )
    if here is None or there is None:
        assert any(reserves) or here is there
        return
    assert [worker.device for worker in here.workers] == list(first)
    if not any(reserves):
        assert all(here.pools[device] == there.pools[device] for device in set(first) & set(second))
    if set(first).isdisjoint(second):
        taken = [
            {cpu for process in (*plan.workers, *plan.processes) for cpu in process.cpus} for plan in (here, there)
        ]
        assert taken[0].isdisjoint(taken[1])


@quick
@given(hosts())
def test_devices_are_at_home_or_told_of(host: Host) -> None:
    if (plan := plan_or_none(host, Demand())) is not None:
        check_locality(host, plan)


@quick
@given(roomy_hosts())
def test_devices_with_room_at_home_are_there(host: Host) -> None:
    plan = planned(host, Demand())
    known = {device: own for device, own in near_of(host).items() if own}
    assert all(set(plan.pools[device]) <= local_cpus(host, own) for device, own in known.items())
    check_locality(host, plan)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["npu", "cuda"])
def test_devices_of_recorded_hosts_are_at_home_or_told_of(name: str, kind: str) -> None:
    """One to three devices on every node, and as many on the first one alone, of each recorded host."""
    host = recorded_host(name)
    nodes = [node for node in host.nodes if node.cpus]
    for places in (nodes, nodes[:1]):
        for count in (1, 2, 3):
            chips = tuple(
                Accelerator(kind, number, "chip", local_cpus=node.cpus, node=node.id)
                for number, node in enumerate(node for node in places for _ in range(count))
            )
            there = replace(host, accelerators=Accelerators(chips))
            if chips and (plan := plan_or_none(there, Demand())) is not None:
                check_locality(there, plan)


@pytest.mark.parametrize("text", SYNTHETIC)
def test_devices_of_hosts_in_a_line_are_at_home_or_told_of(text: str) -> None:
    host = read_host(synthetic(text))
    plan = planned(host, Demand())
    check_locality(host, plan)
    (everyone, *_) = pools = [sorted(plan.pools[device]) for device in plan.pools]
    assert everyone and all(set(one).isdisjoint(other) for one, other in combinations(pools, 2))
    for device in plan.pools:
        assert planned(host, Demand(visible=(device,))).pools == {device: plan.pools[device]}


@quick
@given(roomy_hosts())
def test_every_device_has_its_share_of_its_own_nodes(host: Host) -> None:
    plan = planned(host, Demand())
    for device, own in near_of(host).items():
        assert local_count(host, device, plan.pools[device]) >= share_of(host, device), (own, plan.pools)


@quick
@given(roomy_hosts())
def test_no_device_is_worse_than_under_the_documented_rule(host: Host) -> None:
    """In local CPUs: no fewer than the documented pool holds, unless that takes more than the device's equal share of
    its nodes, and then no fewer than the share. The worst-off device is no worse off, but for the core that cannot be
    cut in two.
    """
    documented = topo_affinity.plan(host, Demand(before_start=True))
    ours = planned(host, Demand())
    mine = {device: local_count(host, device, pool) for device, pool in ours.pools.items()}
    theirs = {device: local_count(host, device, pool) for device, pool in documented.pools.items()}
    for device in mine:
        assert mine[device] >= min(share_of(host, device), theirs[device]), (device, mine, theirs)
    width = max(map(len, host.cores.values()))
    assert min(mine.values()) >= min(theirs.values()) // width * width


@quick
@given(hosts())
def test_memory_and_roles_are_within_what_there_is(host: Host) -> None:
    plan = plan_or_none(host, Demand())
    assume(plan is not None)
    assert plan is not None
    permitted = set(host.allowance.mems) or set(host.node_by_id)
    for worker in plan.workers:
        assert all(node in permitted and host.node_by_id[node].memory for node in worker.memory_nodes)
        assert worker.memory_nodes or not any(node.memory and node.id in permitted for node in host.nodes)
        assert worker.roles["main"] and all(set(cpus) <= set(worker.cpus) for cpus in worker.roles.values())
        assert all(worker.roles.values())
        apart = [cpu for cpus in worker.roles.values() for cpu in cpus]
        if len(worker.cpus) >= 5:
            assert len(apart) == len(set(apart)) == len(worker.cpus)


@quick
@given(hosts(), st.data())
def test_claims_are_kept_clear_of(host: Host, data: st.DataObject) -> None:
    taken = data.draw(st.sets(st.sampled_from(host.allowance.cpus or (0,)), max_size=6))
    plan = plan_or_none(host, Demand(claims=(Claim(99, tuple(sorted(taken)), (500,)),)))
    assume(plan is not None)
    assert plan is not None
    assert all(taken.isdisjoint(pool) and pool for pool in plan.pools.values())


@quick
@given(hosts())
def test_plans_survive_json_and_break_no_promise(host: Host) -> None:
    plan = plan_or_none(host, Demand())
    assume(plan is not None)
    assert plan is not None
    again = Plan.from_dict(json.loads(plan.to_json()))
    assert again.to_dict() == plan.to_dict()
    found = check(host, plan)
    assert [finding for finding in found if finding.severity == "error"] == []
    assert not [finding for finding in found if finding.code == "smt_siblings_split"]
    assert all(finding.remedy for finding in found)
    assert all("\n" not in line for line in explain(host, plan))
