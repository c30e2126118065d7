"""Under a quota of CPU time that is smaller than the CPUs, threads are bound to sets: by settings, host and claims."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homenode.engine.binding import EngineBinding
from homenode.engine.config import ComputeConfig, EngineConfig, PlacementConfig
from homenode.engine.plan.placement import UNPINNED
from homenode.engine.plan.quota_sets import takes_sets, with_cpus_of_sets, with_sets
from homenode.host.plan.demand import Claim
from homenode.host.plan.neighbours import HostNeighbours
from tests.placement_hosts import host

ALL = tuple(range(8))


@pytest.mark.parametrize(
    ("text", "settings", "sets"),
    [
        ("1s/1n/8c quota=4", {}, True),
        ("1s/1n/8c quota=7.5", {}, True),
        ("1s/1n/8c quota=8", {}, False),  # as much as there are: a pod with CPUs of its own
        ("1s/1n/8c", {}, False),
        ("1s/1n/4c/smt2 quota=4", {}, False),
        ("1s/1n/8c quota=2", {"placement": PlacementConfig(cpu_threads_bind="0,1")}, False),  # lists are obeyed
        ("1s/1n/8c quota=2", {"placement": PlacementConfig(numa="local")}, True),
        ("1s/1n/8c quota=2", {"compute": ComputeConfig(backend="reference")}, False),  # binds no thread
        ("1s/1n/8c allowed=0-1 quota=2", {}, False),
    ],
)
def test_a_quota_below_the_cpus_says_how_much_and_not_which(text: str, settings: dict[str, object], sets: bool) -> None:
    assert takes_sets(host(text), EngineConfig(**settings)) == sets  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "team", "taken", "sets"),
    [
        ("1s/1n/8c", (0, 1), (), (ALL, ALL)),
        ("1s/1n/8c", (0, 1), (2, 3), ((0, 1, 4, 5, 6, 7),) * 2),
        ("1s/1n/8c", (0, 1), ALL, ((0, 1), (0, 1))),  # its own all the same
        ("1s/2n/8c", (0, 4), (), ((0, 1, 2, 3), (4, 5, 6, 7))),  # each on the node of its memory
        ("1s/2n/8c", (0, 4), (1, 5), ((0, 2, 3), (4, 6, 7))),
        ("1s/1n/4c/smt2", (0,), (5,), ((0, 2, 3, 4, 6, 7),)),  # cores as a whole
    ],
)
def test_threads_may_use_what_nobody_claims_of_their_node(
    text: str, team: tuple[int, ...], taken: tuple[int, ...], sets: tuple[tuple[int, ...], ...]
) -> None:
    beside = HostNeighbours((Claim(7, taken, computes=True),) if taken else ())
    (found,) = with_sets(host(text), [EngineBinding(team)], beside)
    assert (found.sets, found.team, found.places) == (sets, team, sets)


def test_workers_keep_clear_of_each_other() -> None:
    first, second = with_sets(host("1s/1n/8c"), [EngineBinding((0, 1)), EngineBinding((2,))], HostNeighbours())
    assert first.sets == ((0, 1, 3, 4, 5, 6, 7),) * 2 and second.sets == ((2, 3, 4, 5, 6, 7),)


def test_slower_kinds_of_cores_are_left_out() -> None:
    on = host("1s/1n/4c")
    unequal = replace(on, cpus=tuple(replace(cpu, capacity=512 if cpu.id > 2 else 1024) for cpu in on.cpus))
    (found,) = with_sets(unequal, [EngineBinding((0,))], HostNeighbours())
    assert found.sets == ((0, 1, 2),)


def test_what_does_not_compute_may_use_them_too() -> None:
    (found,) = with_sets(host("1s/1n/4c"), [EngineBinding((0,), spare=(1,))], HostNeighbours())
    assert (found.spare, found.others) == ((0, 1, 2, 3), ())
    assert with_cpus_of_sets((), [found]) == ()


def test_threads_that_are_not_bound_stay_so() -> None:
    unbound = EngineBinding((UNPINNED, UNPINNED))
    assert with_sets(host("1s/1n/8c"), [unbound], HostNeighbours()) == (unbound,)
    assert unbound.places == ((), ())
