"""Which cores compute: the fastest first, low-power cores last, in every policy and on every host."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.cpuset import parse_cpu_list
from homenode.engine.memory.sizing import choose_cpus
from homenode.host.plan.numa.node_teams import node_teams
from homenode.host.plan.resources.core_order import fastest_cores, fastest_cpus, without_low_power
from homenode.host.plan.resources.cores import AllowedCore, allowed_cores
from homenode.host.topology.host import Host
from tests.placement_hosts import host
from tests.recorded import NAMES, recorded_host

UNEQUAL = ("arm-8cpu-two-kinds", "core-ultra-18cpu-three-kinds", "arm-dgx-spark", "core-hybrid-20cpu")

CAPACITIES = st.sampled_from((1024, 997, 718, 512, 256))
CORES = st.tuples(CAPACITIES, st.integers(1, 2), st.booleans())
NODES = st.lists(st.lists(CORES, max_size=8), min_size=1, max_size=4).filter(any)


def made(nodes: list[list[tuple[int, int, bool]]]) -> dict[int, list[AllowedCore]]:
    """Cores by node of (capacity, threads, whether it saves power)."""
    found: dict[int, list[AllowedCore]] = {}
    first = 0
    for node, cores in enumerate(nodes):
        found[node] = []
        for capacity, threads, low_power in cores:
            found[node].append(AllowedCore(first, tuple(range(first, first + threads)), node, 0, capacity, low_power))
            first += threads
    return found


def check_order(cores: dict[int, list[AllowedCore]], cpus: set[int]) -> None:
    """No CPU computes while one that comes before it does not."""
    every = [core for own in cores.values() for core in own]
    first = {core.cpus[0]: core for core in every}
    low = {cpu for core in every if core.low_power for cpu in core.cpus}
    if cpus & low:
        assert {cpu for core in every for cpu in core.cpus} - low <= cpus, "a low-power core before others"
    busy = [first[cpu] for cpu in cpus if cpu in first]
    idle = [core for cpu, core in first.items() if cpu not in cpus]
    for core in busy:
        for other in idle:
            assert core.standing >= other.standing
            assert core.node != other.node or core.standing > other.standing or core.capacity >= other.capacity
    if any(cpu not in first for cpu in cpus - low):
        assert all(core.low_power for core in idle), "a sibling before a core"


@given(NODES, st.integers(0, 40))
def test_any_number_of_threads_is_on_the_fastest_cores(nodes: list[list[tuple[int, int, bool]]], count: int) -> None:
    cores = made(nodes)
    chosen = [cpu for own in fastest_cpus(cores, count).values() for cpu in own]
    assert len(set(chosen)) == len(chosen) == min(count, sum(len(c.cpus) for own in cores.values() for c in own))
    check_order(cores, set(chosen))
    whole = fastest_cores(cores, count)
    assert set(whole) == set(cores)
    single = {node: [replace(core, cpus=core.cpus[:1]) for core in own] for node, own in cores.items()}
    check_order(single, {core.cpus[0] for own in whole.values() for core in own})
    for node, own in whole.items():
        places = [cores[node].index(core) for core in own if not core.low_power]
        assert places == sorted(places), "neighbours in a cache stay neighbours"


@given(NODES)
def test_low_power_cores_compute_where_there_are_no_others(nodes: list[list[tuple[int, int, bool]]]) -> None:
    cores = made(nodes)
    left = [core for own in without_low_power(cores).values() for core in own]
    every = [core for own in cores.values() for core in own]
    assert left == ([core for core in every if not core.low_power] or every)


@pytest.mark.parametrize("name", NAMES)
def test_threads_of_an_engine_are_on_the_fastest_cores_of_every_host(name: str) -> None:
    on = recorded_host(name)
    cores = {0: [core for own in allowed_cores(on).values() for core in own]}
    regular = [core for core in cores[0] if not core.low_power] or cores[0]
    most = min(len(on.allowance.cpus), 40)
    for threads in (None, *range(1, most + 1)):
        chosen = choose_cpus(threads, on)
        assert len(set(chosen)) == len(chosen) == (threads or len(chosen))
        check_order({0: [replace(core, node=0) for core in cores[0]]}, set(chosen))
    kept = {core.cpus[0] for core in regular} - set(choose_cpus(None, on))
    assert len(kept) <= 1
    nodes = {cpu.node for cpu in on.cpus}
    if len(nodes) == 1:
        for threads in (None, *range(1, most + 1)):
            check_order(allowed_cores(on), {cpu for team in node_teams(on, None, threads, 1) for cpu in team.cpus})


@pytest.mark.parametrize(
    ("name", "threads", "cpus"),
    [
        ("arm-8cpu-two-kinds", 4, "4-7"),
        ("arm-8cpu-two-kinds", 2, "4-5"),
        ("arm-8cpu-two-kinds", None, "0-2,4-7"),
        ("core-ultra-18cpu-three-kinds", 4, "0,10,12,14"),
        ("core-ultra-18cpu-three-kinds", None, "0,2-10,12,14"),
        ("core-ultra-18cpu-three-kinds", 14, "0-12,14"),
        ("core-ultra-18cpu-three-kinds", 17, "0-16"),
    ],
)
def test_threads_on_machines_with_cores_of_several_kinds(name: str, threads: int | None, cpus: str) -> None:
    on = recorded_host(name)
    assert set(choose_cpus(threads, on)) == set(parse_cpu_list(cpus))
    (team,) = node_teams(on, None, threads, 1)
    assert set(team.cpus) == set(parse_cpu_list(cpus))


def test_big_cores_of_one_node_come_before_little_ones_of_another() -> None:
    on = host("2s/2n/8c")
    unequal = replace(on, cpus=tuple(replace(cpu, capacity=512) if cpu.node == 0 else cpu for cpu in on.cpus))
    teams = node_teams(unequal, None, 5, 1)
    assert [(team.node, len(team.cpus)) for team in teams] == [(0, 1), (1, 4)]


def test_of_a_cpuset_of_low_power_cores_all_compute() -> None:
    on = recorded_host("core-ultra-18cpu-three-kinds")
    assert choose_cpus(None, allowing(on, "16-17")) == (16, 17)
    assert choose_cpus(None, allowing(on, "2-3,16")) == (2, 3)


def allowing(on: Host, cpus: str) -> Host:
    allowed = parse_cpu_list(cpus)
    return replace(on, allowance=replace(on.allowance, cpus=allowed, physical_cpus=allowed))
