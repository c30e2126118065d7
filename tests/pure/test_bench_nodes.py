"""Measuring nodes: which pairs, with which threads and which memory; what is kept can be read again and speeds up
plans.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from homenode.bench.machine.nodes import BenchTeam, NodeMeter, bench_teams, measure_nodes, memories
from homenode.host.discovery.read import read_host
from homenode.host.discovery.snapshot import load_recording
from homenode.host.plan.numa.machine_speed import machine_speed
from homenode.host.topology.host import Host
from homenode.host.topology.measured import load_measured, parse_measured
from tests.paths import ROOT
from tests.placement_hosts import host


class FakeMeter:
    """Reads as fast as the distance says, and multiplies 10 GOPS a thread."""

    def __init__(self, threads: int, distance: int) -> None:
        self.threads, self.distance = threads, distance

    huge_pages = True

    def read(self, eight_streams: bool, short: bool) -> float:
        return 1e9 * 1000 / self.distance * self.threads

    def multiply(self, kind: str) -> float:
        return 10e9 * self.threads

    def round_trips(self) -> tuple[float, ...]:
        return ()


class FakeProbe:
    """Remembers what was asked."""

    level = "made up"

    def __init__(self, host: Host) -> None:
        self.host = host
        self.asked: list[tuple[BenchTeam, int, int]] = []
        self.met: list[tuple[int, ...]] = []

    def meter(self, team: BenchTeam, memory: int, read_bytes: int) -> tuple[NodeMeter, float | None]:
        self.asked.append((team, memory, read_bytes))
        return FakeMeter(len(team.cpus), self.host.distance(team.node, memory)), 1.0

    def barrier_us(self, cpus: Sequence[int], groups: Sequence[Sequence[int]]) -> float:
        assert len(cpus) == len(groups)
        self.met.append(tuple(cpus))
        return len(cpus) / 8

    def round_trip_ns(self, cpu: int, other: int) -> float:
        return 100.0 if self.host.cpu_by_id[cpu].node == self.host.cpu_by_id[other].node else 300.0


TOLD: list[str] = []


@contextmanager
def told(what: str) -> Iterator[None]:
    TOLD.append(what)
    yield


def recorded(name: str) -> Host:
    return read_host(load_recording(ROOT / "tests" / "hosts" / f"{name}.json"))


def test_every_pair_is_measured_with_one_thread_a_core() -> None:
    made = host("2s/2n/16c/smt2")
    probe = FakeProbe(made)
    found = measure_nodes(made, probe, 64 << 30, told)
    assert [(p.reader, p.memory) for p in found.pairs] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(n.node, n.threads) for n in found.nodes] == [(0, 8), (1, 8)], "16 cores, two threads each"
    local, remote = found.pairs[0], found.pairs[1]
    assert local.read_gb_s > remote.read_gb_s and (local.round_trip_ns, remote.round_trip_ns) == (100.0, 300.0)
    assert (found.barrier_us, found.barrier_across_us) == (1.0, 2.0)
    assert probe.met[-1] == tuple(cpu for team in bench_teams(made) for cpu in team.cpus)


def test_memory_for_reading_is_beyond_the_caches_and_within_what_is_free() -> None:
    made = host("2s/2n/128c")
    probe = FakeProbe(made)
    measure_nodes(made, probe, 1 << 40, told)
    assert {size for _, _, size in probe.asked} == {64 * (64 << 20)}
    small = FakeProbe(made)
    measure_nodes(made, small, 800 << 20, told)
    assert {size for _, _, size in small.asked} == {100 << 20}


def test_one_node_has_one_pair() -> None:
    made = host("1s/1n/4c")
    found = measure_nodes(made, FakeProbe(made), 8 << 30, told)
    assert [(p.reader, p.memory) for p in found.pairs] == [(0, 0)]
    assert found.barrier_across_us == found.barrier_us


def test_a_host_without_nodes_is_one_node() -> None:
    made = recorded("ps3-2cpu")
    assert not made.nodes
    found = measure_nodes(made, FakeProbe(made), 8 << 30, told)
    assert [(n.node, n.memory_node) for n in found.nodes] == [(0, 0)]


def test_threads_without_memory_read_their_nearest_and_memory_without_threads_is_read() -> None:
    made = recorded("qemu-6cpu-memless-node")
    lacking = next(node.id for node in made.nodes if node.cpus and node.memory == 0)
    teams = bench_teams(made)
    lent = next(team for team in teams if team.node == lacking)
    assert lent.memory_node != lacking and lacking not in memories(made, teams)
    other = recorded("xeon-phi-64cpu-hbm")
    lone = next(node.id for node in other.nodes if not node.cpus and node.memory)
    assert lone in memories(other, bench_teams(other)) and lone not in {team.node for team in bench_teams(other)}


HOSTS = sorted(path.stem for path in (ROOT / "tests" / "hosts").glob("*.json") if path.stem != "expected")


@pytest.mark.parametrize("name", HOSTS)
def test_what_is_kept_is_read_again_and_feeds_the_cost_model(name: str, tmp_path: Path) -> None:
    made = recorded(name)
    if len(bench_teams(made)) > 16:
        pytest.skip("64 nodes are 4096 pairs, and no different")
    found = measure_nodes(made, FakeProbe(made), 8 << 30, told)
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps(found.to_json()))
    measured = load_measured(file)
    assert measured == parse_measured(found.to_json())
    teams = bench_teams(made)
    speed = machine_speed(teams, made, measured)
    assert [(n.node, n.memory) for n in speed.nodes] == [(t.node, t.memory_node) for t in teams]
    for node, kept in zip(speed.nodes, found.nodes, strict=True):
        assert node.read_gb_s == kept.read_gb_s and node.int8_gops == kept.int8_gops
    for pair in found.pairs:
        reader = next(node for node in speed.nodes if node.node == pair.reader)
        assert speed.bandwidth(reader, pair.memory) == pair.read_gb_s


def test_it_is_told_what_is_being_measured() -> None:
    TOLD.clear()
    made = host("2s/2n/4c")
    measure_nodes(made, FakeProbe(made), 8 << 30, told)
    assert [f"node {a} reads from node {b}" for a in (0, 1) for b in (0, 1)] + ["barriers"] == TOLD
