"""An engine keeps clear of others' CPUs: by settings, host and claims, where it computes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.engine.binding import EngineBinding
from homenode.engine.config import ComputeConfig, EngineConfig, PlacementConfig
from homenode.engine.plan.free_cores import (
    NEIGHBOUR,
    cpus_for_the_rest,
    keep_clear,
    neighbour_findings,
    takes_lists,
)
from homenode.engine.plan.placement import core_of, place_engine, too_few_cores
from homenode.engine.plan.replica_bindings import replica_places
from homenode.host.plan.demand import Claim
from homenode.host.plan.neighbours import HostNeighbours
from homenode.host.topology.host import Host
from tests.placement_hosts import host

EIGHT, SMT, NODES = "1s/1n/8c", "1s/1n/4c/smt2", "1s/2n/8c"


def claims(*cpus: tuple[int, ...]) -> tuple[Claim, ...]:
    return tuple(Claim(100 + n, each, (), "engine of other", computes=True) for n, each in enumerate(cpus))


def config(threads: int | None = None, **placement: object) -> EngineConfig:
    return EngineConfig(compute=ComputeConfig(threads=threads), placement=PlacementConfig(**placement))  # type: ignore[arg-type]


def placed(on: Host, settings: EngineConfig, neighbours: HostNeighbours) -> EngineBinding:
    clear, beside = keep_clear(on, settings, 1, neighbours)
    return place_engine(beside.placement, beside.compute.threads, clear)


@pytest.mark.parametrize(
    ("text", "threads", "taken", "team"),
    [
        ("1s/1n/2c", 1, ((0,),), (1,)),
        ("1s/1n/2c", 1, ((1,),), (0,)),
        (EIGHT, 2, ((0, 1), (4,)), (2, 3)),
        (EIGHT, 4, ((0, 1), (2,)), (3, 4, 5, 6)),
        (SMT, 1, ((4,),), (1,)),  # the core of a sibling is no free core
        (SMT, 4, ((0, 1),), (2, 3, 6, 7)),  # own siblings before cores of others
        (NODES, 2, ((0, 1, 2, 3),), (4, 5)),
        # Too few are free: these, and those that fewest claim.
        (EIGHT, 4, ((0, 1, 2, 3), (0, 1, 4, 5)), (2, 3, 6, 7)),
        ("1s/1n/2c", 1, ((0, 1), (0,)), (1,)),
        ("1s/1n/2c", 2, ((0,),), (0, 1)),
        # Nobody said how many: what is free, as long as that is half of what it would take by itself.
        (EIGHT, None, ((0,),), (1, 2, 3, 4, 5, 6)),
        (EIGHT, None, ((0, 1, 2, 3),), (4, 5, 6)),
        ("1s/1n/2c", None, ((0,),), (1,)),
        # Less is free: as many as by itself, the free ones among them.
        (EIGHT, None, ((0, 1, 2, 3, 4, 5, 6),), (0, 1, 2, 3, 4, 5, 7)),
        ("1s/1n/2c", None, ((0, 1),), (0, 1)),
        ("1s/1n/1c", None, ((0,),), (0,)),
    ],
)
def test_threads_go_where_nobody_computes_while_there_is_room(
    text: str, threads: int | None, taken: tuple[tuple[int, ...], ...], team: tuple[int, ...]
) -> None:
    assert sorted(placed(host(text), config(threads), HostNeighbours(claims(*taken))).team) == list(team)


@pytest.mark.parametrize(
    ("threads", "busy", "team"),
    [
        (1, {0: 0.9}, (1,)),
        (1, {0: 0.2}, (0,)),  # what a quiet machine does by itself
        (2, {0: 1.0, 2: 0.6}, (1, 3)),
        (3, {0: 1.0, 1: 0.6, 2: 0.8}, (1, 2, 3)),
        (4, {0: 1.0}, (0, 1, 2, 3)),
        (None, {0: 1.0, 1: 1.0}, (0, 1, 2)),  # how many threads there are does not depend on a moment
    ],
)
def test_busy_cpus_are_left_alone_while_there_are_quiet_ones(
    threads: int | None, busy: dict[int, float], team: tuple[int, ...]
) -> None:
    assert sorted(placed(host("1s/1n/4c"), config(threads), HostNeighbours((), busy)).team) == list(team)


def test_a_claim_counts_more_than_a_busy_moment() -> None:
    both = HostNeighbours(claims((0,)), {1: 1.0})
    assert placed(host("1s/1n/2c"), config(1), both).team == (1,)
    assert placed(host("1s/1n/2c"), config(1, numa="local"), both).team == (1,)


@pytest.mark.parametrize(
    ("settings", "text", "taken", "team"),
    [
        ({"numa_nodes": "0", "numa": "local"}, NODES, (0, 1), (2, 3)),
        ({"numa_nodes": "0", "numa": "local"}, NODES, (0, 1, 2), (0, 1)),  # too few are left there
        ({"numa": "local"}, NODES, (0, 1, 2, 4), (5, 6)),
        ({"numa": "local"}, NODES, (0, 1, 2, 4, 5, 6), (0, 1)),  # what is free is on two nodes
        ({"numa_bind": True}, NODES, (0,), (1, 2)),
        ({"numa_bind": True, "numa_bind_nodes": (1,)}, NODES, (4, 5), (6, 7)),
        ({"memory_nodes": "1"}, NODES, (4,), (5, 6)),
        ({"cpu_threads_bind": "0,1"}, NODES, (0, 1), (0, 1)),
        ({"numa_bind": True, "numa_bind_nodes": (0,), "numa_bind_cpus": ("0-1",)}, NODES, (0,), (0, 1)),
        ({"reserve_cpus": 2}, EIGHT, (0, 1, 2), (3, 4)),
    ],
)
def test_what_was_asked_for_is_obeyed(
    settings: dict[str, object], text: str, taken: tuple[int, ...], team: tuple[int, ...]
) -> None:
    assert placed(host(text), config(2, **settings), HostNeighbours(claims(taken))).team == team


@pytest.mark.parametrize(("bind", "lists"), [("0,1", True), ("nobind", True), ("auto", False), (None, False)])
def test_lists_leave_no_choice(bind: str | None, lists: bool) -> None:
    assert takes_lists(PlacementConfig(cpu_threads_bind=bind), host(EIGHT)) == lists


def test_several_engines_keep_clear_together() -> None:
    clear, beside = keep_clear(host(EIGHT), config(1), 3, HostNeighbours(claims((0, 4))))
    teams = [binding.team for binding in replica_places(clear, beside, 3)]
    assert {0, 4}.isdisjoint(cpu for team in teams for cpu in team) and len(set(teams)) == 3


def test_who_shares_and_who_does_not_is_told() -> None:
    seen = neighbour_findings(host(EIGHT), (0, 1), HostNeighbours(claims((1, 2), (6, 7), (99,))))
    assert [(finding.severity, finding.code) for finding in seen] == [("warning", "cores_shared"), ("info", NEIGHBOUR)]
    assert "process 100 (engine of other)" in seen[0].message and "CPUs 3-5 are free" in seen[0].remedy
    assert seen[1].message == "process 101 (engine of other) has CPUs 6-7"
    (full,) = neighbour_findings(host("1s/1n/2c"), (0,), HostNeighbours(claims((0, 1))))
    assert "--threads" in full.remedy


@pytest.mark.parametrize(("taken", "rest"), [((), (1, 2, 3)), ((1,), (2, 3)), ((1, 2, 3), (0,))])
def test_what_does_not_compute_disturbs_nobody(taken: tuple[int, ...], rest: tuple[int, ...]) -> None:
    assert cpus_for_the_rest(host("1s/1n/4c"), (0,), HostNeighbours(claims(taken) if taken else ())) == rest


def test_busy_cpus_are_there_for_the_rest_all_the_same() -> None:
    clear, _ = keep_clear(host("1s/1n/2c"), config(1), 1, HostNeighbours((), {0: 1.0}))
    assert clear.allowance.cpus == (1,) and too_few_cores(clear, EngineBinding((1,))) == ()
    clear, _ = keep_clear(host("1s/1n/2c"), config(1), 1, HostNeighbours(claims((0,))))
    assert [finding.code for finding in too_few_cores(clear, EngineBinding((1,)))] == ["too_few_cores"]


@given(
    st.sampled_from(["1s/1n/1c", "1s/1n/2c", "1s/2n/4c", "2s/4n/8c", "1s/2n/6c/smt2", "2s/2n/8c/smt2"]),
    st.lists(st.one_of(st.none(), st.integers(1, 8)), min_size=2, max_size=5),
    st.sampled_from([None, "auto", "shard", "local"]),
    st.randoms(use_true_random=False),
)
def test_nobody_shares_a_core_while_another_is_free(
    text: str, servers: list[int | None], numa: str | None, random: object
) -> None:
    """Servers with any number of threads start one after the other, and some end in between."""
    on = host(text)
    cores = {core_of(on, cpu) for cpu in on.allowance.cpus}
    living: dict[int, tuple[int, ...]] = {}
    for number, threads in enumerate(servers):
        if living and random.random() < 0.25:  # type: ignore[attr-defined]
            del living[random.choice(sorted(living))]  # type: ignore[attr-defined]
        if threads is not None:
            threads = min(threads, len(on.allowance.cpus))
        others = HostNeighbours(tuple(Claim(pid, cpus, computes=True) for pid, cpus in living.items()))
        if numa == "local" and threads is not None and threads > len(on.nodes[0].cpus):
            continue
        binding = placed(on, config(threads, numa=numa), others)
        taken = {core_of(on, cpu) for cpus in living.values() for cpu in cpus}
        own = {core_of(on, cpu) for cpu in binding.team}
        free = cores - taken - own
        assert not (own & taken and free) or numa == "local", (binding, living)
        assert threads is None or len(binding.team) == threads
        if not living:
            assert binding.team == place_engine(PlacementConfig(numa=numa), threads, on).team  # type: ignore[arg-type]
        living[number] = binding.team
