"""Where several engines run on hosts of every shape, and how they share the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.replica_bindings import memory_shares, replica_places, team_places
from homenode.errors import HomenodeError, PlacementError, UserError
from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Host
from homenode.testing.hosts.synthetic import synthetic
from tests.recorded import NAMES, recorded_host

TWO_NODES = "1s/2n/8c/smt2"  # node 0: cores 0-3 (siblings 8-11), node 1: cores 4-7 (siblings 12-15)


def host(text: str = TWO_NODES) -> Host:
    return read_host(synthetic(text))


def bindings(text: str, count: int, **settings: Any) -> tuple[EngineBinding, ...]:
    return replica_places(host(text), EngineConfig.of(None, settings), count)


@pytest.mark.parametrize(
    ("text", "count", "teams", "memory", "spare"),
    [
        ("1s/1n/2c", 2, [(0,), (1,)], [(), ()], ()),  # two cores: none is kept, and one node needs no binding
        ("1s/1n/8c/smt2", 2, [(0, 1, 2), (4, 5, 6, 7)], [(), ()], (3, 11)),
        (TWO_NODES, 2, [(0, 1, 2), (4, 5, 6, 7)], [(0,), (1,)], (3, 11)),
        (TWO_NODES, 3, [(0, 1), (2, 3), (4, 5, 6)], [(0,), (0,), (1,)], (7, 15)),  # a node that two share
        ("2s/4n/8c", 2, [(0, 1, 2), (4, 5, 6, 7)], [(0, 1), (2, 3)], (3,)),  # whole nodes, a socket each
    ],
)
def test_the_cores_are_divided(
    text: str, count: int, teams: list[tuple[int, ...]], memory: list[tuple[int, ...]], spare: tuple[int, ...]
) -> None:
    found = bindings(text, count)
    assert [binding.team for binding in found] == teams
    assert [binding.memory_nodes for binding in found] == memory
    assert {binding.spare for binding in found} == {spare}


def test_other_threads_take_a_free_core_of_their_node_or_stay_on_their_own_cores() -> None:
    first, second = bindings(TWO_NODES, 2)
    assert first.others == first.free_of_compute == (3, 11)
    assert second.others == (4, 5, 6, 7, 12, 13, 14, 15) and second.free_of_compute == ()


def test_threads_are_those_of_each_engine() -> None:
    assert [binding.team for binding in bindings(TWO_NODES, 2, threads=2)] == [(0, 1), (4, 5)]
    assert [len(binding.team) for binding in bindings(TWO_NODES, 2, threads=6)] == [6, 6], (
        "siblings, as they were asked for"
    )


def test_a_quota_is_divided_as_well() -> None:
    seen = host("1s/1n/8c")
    half = replace(seen, allowance=replace(seen.allowance, cpu_quota=4.0))
    assert [len(binding.team) for binding in replica_places(half, EngineConfig(), 2)] == [2, 2]


@pytest.mark.parametrize(
    ("settings", "teams", "memory"),
    [
        ({"cpu_threads_bind": "0-1|4-7"}, [(0, 1), (4, 5, 6, 7)], [(0,), (1,)]),
        ({"numa_bind": True}, [(0, 1, 2), (4, 5, 6)], [(0,), (1,)]),
        ({"numa_bind": True, "numa_bind_nodes": (1, 0)}, [(4, 5, 6), (0, 1, 2)], [(1,), (0,)]),
        ({"numa_bind": True, "numa_bind_nodes": (1, 1)}, [(4, 5), (6, 7)], [(1,), (1,)]),
        ({"numa_bind": True, "reserve_cpus": 1}, [(0, 1, 2), (4, 5, 6, 7)], [(0,), (1,)]),
        ({"cpu_threads_bind": "nobind"}, [(UNPINNED,) * 4] * 2, [(), ()]),
        ({"reserve_cpus": 2}, [(0, 1, 2), (4, 5, 6)], [(0,), (1,)]),
    ],
)
def test_placement_settings_mean_the_same_as_for_workers_of_a_plan(
    settings: Mapping[str, Any], teams: list[tuple[int, ...]], memory: list[tuple[int, ...]]
) -> None:
    found = bindings(TWO_NODES, 2, **settings)
    assert [(binding.team, binding.memory_nodes) for binding in found] == list(zip(teams, memory, strict=True))


@pytest.mark.parametrize(
    ("text", "count", "settings", "words"),
    [
        ("1s/1n/2c", 3, {}, ("--data-parallel-size 3", "2 physical cores", "give 2")),
        ("1s/1n/2c", 2, {"threads": 2}, ("--threads 2", "engine 0 has 1 CPU", "give 1")),
        (TWO_NODES, 2, {"reserve_cpus": 7}, ("--reserve-cpus 7", "give 6")),
        (TWO_NODES, 2, {"cpu_threads_bind": "0-3|3-7"}, ("engines 0 and 1", "CPU 3")),
        (TWO_NODES, 2, {"cpu_threads_bind": "0-3"}, ("1 list for 2 workers",)),
        (TWO_NODES, 2, {"numa_bind": True, "numa_bind_cpus": ("0-3", "2-7")}, ("engines 0 and 1", "CPU 2")),
        ("2s/2n/2c", 2, {"numa_bind": True, "numa_bind_nodes": (0, 0)}, ("node 0", "--numa-bind-nodes")),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    text: str, count: int, settings: Mapping[str, Any], words: tuple[str, ...]
) -> None:
    with pytest.raises(UserError) as refused:
        bindings(text, count, **settings)
    assert all(word in refused.value.message for word in words), refused.value.message


def test_too_few_cores_are_said_with_every_engine() -> None:
    found = bindings("1s/1n/2c", 2)
    assert all([finding.code for finding in binding.findings] == ["too_few_cores"] for binding in found)
    assert found[0].findings == found[1].findings, "so that a front can tell it once"
    assert not bindings("1s/1n/4c", 2)[0].findings


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_on_every_recorded_machine_engines_are_disjoint_and_on_allowed_cpus(name: str, count: int) -> None:
    seen = recorded_host(name)
    try:
        found = replica_places(seen, EngineConfig(), count)
    except (UserError, PlacementError) as error:
        assert len(seen.allowance.physical_cpus) < count, error
        return
    teams = [cpu for binding in found for cpu in binding.team]
    assert len(found) == count and all(binding.team and binding.others for binding in found)
    assert len(teams) == len(set(teams)) and set(teams) <= set(seen.allowance.cpus)
    assert all(set(binding.spare).isdisjoint(teams) for binding in found)
    mems = set(seen.allowance.mems)
    assert all(set(binding.memory_nodes) <= mems for binding in found if mems)


@dataclass(frozen=True)
class NodeTeam:
    node: int
    memory_node: int
    cpus: tuple[int, ...]


def test_a_team_for_each_node_is_bound_to_its_memory() -> None:
    found = team_places(host(), [NodeTeam(0, 0, (0, 1, 2)), NodeTeam(1, 0, (4, 5, 6))])
    assert [(binding.team, binding.memory_nodes, binding.others) for binding in found] == [
        ((0, 1, 2), (0,), (3, 11)),
        ((4, 5, 6), (0,), (7, 15)),
    ]
    with pytest.raises(HomenodeError, match="CPU 1"):
        team_places(host(), [NodeTeam(0, 0, (0, 1)), NodeTeam(1, 1, (1, 2))])


ROOMS = st.lists(
    st.tuples(st.integers(0, 1 << 40), st.lists(st.integers(0, 3), max_size=2, unique=True).map(tuple)),
    min_size=1,
    max_size=6,
)


@settings(deadline=None)
@given(ROOMS, st.integers(0, 1 << 41))
def test_no_byte_is_promised_twice(capacities: list[tuple[int, tuple[int, ...]]], total: int) -> None:
    shares = memory_shares(capacities, total)
    assert sum(shares) <= total
    for node in range(4):
        sharers = [number for number, (_, nodes) in enumerate(capacities) if not nodes or node in nodes]
        room = max((capacities[number][0] for number in sharers), default=0)
        assert sum(shares[number] for number in sharers) <= room


def test_engines_of_one_node_share_it_and_those_of_two_have_one_each() -> None:
    assert memory_shares([(80, (0,)), (80, (0,)), (60, (1,))], 1000) == (40, 40, 60)
    assert memory_shares([(100, ()), (100, ())], 100) == (50, 50)
    assert memory_shares([(80, (0,)), (40, (1,))], 60) == (40, 20), "a limit of the whole group is shared in proportion"
