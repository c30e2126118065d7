"""The watch of an engine: what it claims before threads move and after, and that two of them go to no core at once.
Claims are real, hosts are made up, and nobody computes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from homenode.engine.binding import EngineBinding
from homenode.engine.cpu_claims import CpuClaim, open_claims
from homenode.engine.plan.moves import EnginePlaces
from homenode.engine.runtime import neighbour_watch
from homenode.engine.runtime.neighbour_watch import NeighbourWatch
from homenode.errors import HostError
from homenode.host.bind.base.state import State, open_state
from homenode.host.bind.claims import claim, read_claims, release
from homenode.host.plan.demand import Claim
from homenode.host.topology.host import Host
from tests.placement_hosts import host


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    monkeypatch.setenv("HOMENODE_STATE_DIR", str(tmp_path / "state"))
    return open_state()


@pytest.fixture
def other(state: State) -> Iterator[int]:
    """Another process, which lives as long as the test."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process.pid
    process.kill()
    process.wait()


class Recorder:
    """An executor that moves nobody, and notes what was claimed when it was asked to."""

    def __init__(self, state: State, processes: tuple[int, ...] = ()) -> None:
        self._state, self.processes = state, processes
        self.moves: list[tuple[tuple[int, ...], set[int]]] = []

    def move(self, places: Sequence[EngineBinding]) -> None:
        self.moves.append((places[0].team, own_claim(self._state)))


def own_claim(state: State) -> set[int]:
    return {cpu for each in read_claims(state) if each.pid == os.getpid() for cpu in each.cpus}


def watch(state: State, team: tuple[int, ...], cores: int = 2, processes: tuple[int, ...] = ()) -> RecordedWatch:
    mine = CpuClaim("engine")
    with open_claims(mine) as claims:
        claims.take(mine, team)
    places = EnginePlaces((EngineBinding(team, spare=()),))
    return RecordedWatch(host(f"1s/1n/{cores}c"), places, mine, Recorder(state, processes))


class RecordedWatch(NeighbourWatch):
    """Its moves are recorded, and its claim can be given up."""

    def __init__(self, host: Host, places: EnginePlaces, claim: CpuClaim, recorder: Recorder) -> None:
        super().__init__(host, places, claim, (), recorder, False)
        self.claim, self.moves = claim, recorder.moves


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody uses the CPUs of hosts that are made up; claims of one test end with it."""
    monkeypatch.setattr(neighbour_watch, "CpuLook", Quiet)
    yield
    from homenode.engine import cpu_claims

    cpu_claims.forget_claims()


class Quiet:
    def __init__(self, own: Sequence[int]) -> None:
        self.own = own

    def finish(self) -> dict[int, float]:
        return {}


def test_cpus_are_claimed_before_threads_go_there_and_given_up_after(state: State, other: int) -> None:
    watched = watch(state, (0,))
    watched.look()
    assert watched.moves == [], "nobody came"
    claim(state, Claim(other, (0,), name="x", computes=True))
    watched.look()
    assert watched.moves == [((1,), {0, 1})] and own_claim(state) == {1}
    watched.look()
    assert len(watched.moves) == 1, "it stays"
    release(state, other)
    watched.look()
    assert {team for team, _ in watched.moves} == {(1,)} and own_claim(state) == {1}


def test_cpus_that_threads_are_bound_to_stay_claimed(state: State, other: int) -> None:
    """Whatever the executor has promised: the kernel is asked."""
    first, second = min(os.sched_getaffinity(0)), min(os.sched_getaffinity(0)) + 1
    os.sched_setaffinity(other, {first})
    watched = watch(state, (first,), second + 1, processes=(other,))
    claim(state, Claim(os.getppid(), tuple(c for c in range(second + 1) if c != second), name="x", computes=True))
    watched.look()
    assert own_claim(state) == {first, second}
    watched.look()
    assert own_claim(state) == {first, second} and len(watched.moves) == 1
    os.sched_setaffinity(other, os.sched_getaffinity(0))
    if len(os.sched_getaffinity(0)) > 1:
        watched.look()
        assert own_claim(state) == {second}


def test_without_claims_nothing_moves(state: State, other: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbour_watch, "_LOCK_S", 0.05)
    watched = watch(state, (0,))
    claim(state, Claim(other, (0,), name="x", computes=True))
    with state.locked("claims"), pytest.raises(HostError):
        watched.look()
    assert watched.moves == [] and watched.places.team == (0,)
    watched.look()
    assert watched.places.team == (1,), "it looks again"


def test_two_never_go_to_the_same_core_at_once(state: State) -> None:
    for _ in range(10):
        both = [watch(state, (0,)), watch(state, (0,))]
        at_once = threading.Barrier(2)

        def look(watched: NeighbourWatch, at_once: threading.Barrier = at_once) -> None:
            at_once.wait()
            watched.look()

        threads = [threading.Thread(target=look, args=(watched,)) for watched in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(watched.places.team for watched in both) == [(0,), (1,)]
        for watched in both:
            watched.claim.release()


def test_the_thread_ends_when_it_is_told_to_and_survives_what_fails(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = threading.Semaphore(0)

    def fail(_: NeighbourWatch) -> None:
        looks.release()
        raise OSError("too many open files")

    monkeypatch.setattr(NeighbourWatch, "look", fail)
    monkeypatch.setattr(neighbour_watch, "_EVERY_S", 0.01)
    watched = watch(state, (0,))
    watched.start()
    assert looks.acquire(timeout=30) and looks.acquire(timeout=30)
    before = threading.active_count()
    watched.stop()
    assert threading.active_count() == before - 1
