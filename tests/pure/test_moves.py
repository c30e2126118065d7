"""An engine goes to cores that become free: by its places, host and claims, where it computes next."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.engine.binding import EngineBinding
from homenode.engine.plan.moves import EnginePlaces, RestPlace, moved_places, moved_team, moved_workers
from homenode.engine.plan.placement import UNPINNED, core_of
from homenode.host.plan.demand import Claim
from homenode.host.plan.neighbours import HostNeighbours
from homenode.host.topology.host import Host
from tests.placement_hosts import host

EIGHT, SMT, NODES = "1s/1n/8c", "1s/1n/4c/smt2", "1s/2n/8c"


def claims(*cpus: tuple[int, ...]) -> tuple[Claim, ...]:
    return tuple(Claim(100 + n, each, (), "engine of other", computes=True) for n, each in enumerate(cpus))


@pytest.mark.parametrize(
    ("text", "team", "taken", "moved"),
    [
        ("1s/1n/2c", (0,), (), (0,)),
        ("1s/1n/2c", (0,), ((1,),), (0,)),
        ("1s/1n/2c", (0,), ((0,),), (1,)),
        ("1s/1n/2c", (1,), ((1,),), (0,)),
        ("1s/1n/2c", (0,), ((0,), (1,)), (0,)),  # where nothing is free it stays
        (EIGHT, (0, 1, 2), ((1,),), (0, 3, 2)),
        (EIGHT, (0, 1, 2), ((0, 1, 2, 3, 4, 5, 6),), (7, 1, 2)),
        (SMT, (0, 4), ((0,),), (1, 5)),  # threads that have a core together go together
        (SMT, (0, 4), ((0,), (1,), (2,), (3,)), (0, 4)),
        (SMT, (0,), ((4,),), (1,)),  # the core of a sibling is shared
        (SMT, (0,), ((4,), (5,), (6,)), (3,)),
        (NODES, (0,), ((0, 1, 2),), (3,)),
        (NODES, (0,), ((0, 1, 2, 3),), (0,)),  # its memory is on its node
        (NODES, (0, 4), ((0, 4),), (1, 5)),
        ("1s/1n/4c", (0, 0), (), (0, 1)),  # workers that had to share a core
        ("1s/1n/4c", (0, 0, 1), ((0,),), (2, 3, 1)),
    ],
)
def test_threads_leave_cores_that_they_share(
    text: str, team: tuple[int, ...], taken: tuple[tuple[int, ...], ...], moved: tuple[int, ...]
) -> None:
    assert moved_team(host(text), team, HostNeighbours(claims(*taken))) == moved


def test_a_core_that_others_use_without_a_claim_is_not_free() -> None:
    beside = HostNeighbours(claims((0,)), {1: 0.9, 2: 0.2})
    assert moved_team(host("1s/1n/4c"), (0,), beside) == (2,)
    assert moved_team(host("1s/1n/2c"), (0,), beside) == (0,)
    crowded = HostNeighbours(claims((0,)), {0: 0.9, 1: 0.9})
    assert moved_team(host("1s/1n/2c"), (0,), crowded) == (1,), "claims last longer than a busy moment"


def test_faster_cores_first_and_slower_ones_rather_than_shared() -> None:
    on = host("1s/1n/4c")
    unequal = replace(on, cpus=tuple(replace(cpu, capacity=512 if cpu.id < 2 else 1024) for cpu in on.cpus))
    assert moved_team(unequal, (3,), HostNeighbours(claims((3,)))) == (2,)
    assert moved_team(unequal, (3,), HostNeighbours(claims((2, 3)))) == (0,)
    assert moved_team(unequal, (0,), HostNeighbours(claims((2,)))) == (3,), "a faster core has become free"
    assert moved_team(unequal, (0, 3), HostNeighbours(claims((2,)))) == (0, 3)


def test_what_does_not_compute_keeps_off_the_cores_of_others() -> None:
    places = EnginePlaces((EngineBinding((0,), spare=(1,)),), rest=(1,))
    moved = moved_places(host("1s/1n/2c"), places, HostNeighbours(claims((1,))))
    assert (moved.rest, moved.workers[0].spare, moved.team) == ((0,), (0,), (0,))
    assert moved_places(host("1s/1n/2c"), moved, HostNeighbours()).rest == (1,)


def test_a_reserve_that_was_asked_for_stays_where_nobody_computes() -> None:
    reserved = EnginePlaces((EngineBinding((0,), others=(1,)),), (1,), RestPlace.RESERVED)
    assert moved_places(host("1s/1n/2c"), reserved, HostNeighbours(claims((0, 1)))) == reserved
    assert moved_places(host("1s/1n/2c"), reserved, HostNeighbours(claims((0,)))) == reserved
    assert moved_places(host("1s/1n/3c"), reserved, HostNeighbours(claims((0,)))).team == (2,)


def test_what_was_given_cpus_together_keeps_to_them() -> None:
    """The CPUs of --numa-bind are a worker's whole world."""
    bindings = (EngineBinding((0,), others=(1, 2)), EngineBinding((4,), others=(5, 6)))
    places = EnginePlaces(bindings, (1, 2), RestPlace.WITHIN)
    moved = moved_places(host(NODES), places, HostNeighbours(claims((0,), (5,))))
    assert [(each.team, each.others) for each in moved.workers] == [((1,), (2,)), ((4,), (6,))]
    assert moved.rest == (2,)


def test_several_engines_keep_to_their_own_cores() -> None:
    """Where no core is free, what does not compute stays on those of its own engine."""
    bindings = (EngineBinding((0,), others=(0,)), EngineBinding((1,), others=(1,)))
    places = EnginePlaces(bindings, (0, 1), RestPlace.WITHIN)
    assert moved_places(host("1s/1n/2c"), places, HostNeighbours(claims((0,)))).workers == bindings
    moved = moved_places(host("1s/1n/3c"), places, HostNeighbours(claims((0,))))
    assert [(each.team, each.others) for each in moved.workers] == [((2,), (2,)), ((1,), (1,))]


def test_workers_of_one_of_several_engines_go_with_it() -> None:
    workers = (EngineBinding((0,), spare=(3,)), EngineBinding((1,), spare=(3,)))
    before = EngineBinding((0, 1), others=(3,))
    moved = moved_workers(workers, before, EngineBinding((0, 2), others=(4,), sets=((0, 2, 5), (0, 2, 5))))
    assert [(each.team, each.spare, each.sets) for each in moved] == [
        ((0,), (4,), ((0, 5),)),
        ((2,), (4,), ((2, 5),)),
    ]


def test_others_of_workers_move_too() -> None:
    places = EnginePlaces((EngineBinding((0,), others=(0,)),), (0,))
    moved = moved_places(host("1s/1n/2c"), places, HostNeighbours(claims((0,))))
    assert (moved.team, moved.workers[0].others, moved.rest) == ((1,), (1,), (1,))


def test_each_worker_keeps_its_threads() -> None:
    bindings = (EngineBinding((0, 1)), EngineBinding(()), EngineBinding((UNPINNED, 2)))
    moved = moved_places(host(EIGHT), EnginePlaces(bindings), HostNeighbours(claims((1, 2))))
    assert [each.team for each in moved.workers] == [(0, 3), (), (UNPINNED, 4)]


def test_threads_with_sets_do_without_what_others_claim() -> None:
    places = EnginePlaces((EngineBinding((0, 1)),), takes_sets=True)
    (moved,) = moved_places(host(EIGHT), places, HostNeighbours(claims((2, 3)))).workers
    assert moved.sets == ((0, 1, 4, 5, 6, 7),) * 2
    (moved,) = moved_places(host(EIGHT), places, HostNeighbours()).workers
    assert moved.sets == (tuple(range(8)),) * 2


_texts = st.sampled_from([EIGHT, SMT, NODES, "2s/2n/8c/smt2", "1s/1n/2c"])


@st.composite
def _engines(draw: st.DrawFn) -> tuple[Host, dict[int, tuple[int, ...]], list[int]]:
    """A host, engines that are anywhere on it, and the order in which they look."""
    on = host(draw(_texts))
    cpus = st.sampled_from(on.allowance.cpus)
    teams = draw(st.lists(st.lists(cpus, min_size=1, max_size=3).map(tuple), min_size=1, max_size=5))
    order = draw(st.lists(st.integers(0, len(teams) - 1), min_size=60, max_size=60))
    return on, dict(enumerate(teams)), order


@given(_engines())
def test_engines_come_to_rest_and_none_shares_while_its_node_has_a_free_core(
    drawn: tuple[Host, dict[int, tuple[int, ...]], list[int]],
) -> None:
    """Whoever looks first, each thread moves once at most, within its node."""
    on, teams, order = drawn
    began, moves = dict(teams), 0
    for engine in [*order, *teams, *teams]:
        moved = moved_team(on, teams[engine], beside(teams, engine))
        moves += sum(before != after for before, after in zip(teams[engine], moved, strict=True))
        teams[engine] = moved
    assert moves <= sum(map(len, teams.values()))
    nodes = {cpu.id: cpu.node for cpu in on.cpus}
    for engine, team in teams.items():
        assert [nodes[cpu] for cpu in team] == [nodes[cpu] for cpu in began[engine]]
        assert moved_team(on, team, beside(teams, engine)) == team
    had = [core_of(on, cpu) for team in teams.values() for cpu in set(team)]
    free = {core for core in on.cores if core not in had}
    for engine, team in teams.items():
        claimed = {core_of(on, cpu) for other, cpus in teams.items() if other != engine for cpu in cpus}
        for cpu in team:
            if core_of(on, cpu) in claimed:
                wide = [
                    core
                    for core in free
                    if nodes[core] == nodes[cpu]
                    and len(on.cores[core]) >= len({c for c in team if core_of(on, c) == core_of(on, cpu)})
                ]
                assert not wide, f"engine {engine} shares the core of CPU {cpu} in {teams}"


def beside(teams: dict[int, tuple[int, ...]], engine: int) -> HostNeighbours:
    return HostNeighbours(claims(*(team for other, team in teams.items() if other != engine)))
