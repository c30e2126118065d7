"""How fast nodes are taken to be: from a measurement, or from distances; and that a wrong measurement is refused by
name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from homenode.errors import UserError
from homenode.host.plan.numa.machine_speed import machine_speed
from homenode.host.topology.measured import Measured, load_measured, parse_measured
from tests.host_values import Shape, host_of
from tests.placement_hosts import host


@dataclass(frozen=True)
class Team:
    node: int
    memory_node: int
    cpus: tuple[int, ...]


def recorded() -> dict[str, Any]:
    return {
        "format": "homenode-nodes/1",
        "nodes": [
            {"node": 0, "threads": 8, "read_gb_s": 100.0, "int8_gops": 800.0},
            {"node": 2, "threads": 4, "read_gb_s": 60, "int8_gops": 400.0},
        ],
        "pairs": [{"reader": 0, "memory": 2, "read_gb_s": 30.0}, {"reader": 2, "memory": 0, "read_gb_s": 25.0}],
        "barrier_us": 0.5,
        "barrier_across_us": 2.5,
        "kernel": "any",
    }


TEAMS = (Team(0, 0, tuple(range(8))), Team(2, 2, (8, 9, 10, 11)))


def test_measured_figures_are_used_as_they_are() -> None:
    found = machine_speed(TEAMS, host("2s/2n/16c"), parse_measured(recorded()))
    assert [(n.node, n.threads, n.read_gb_s, n.int8_gops) for n in found.nodes] == [
        (0, 8, 100.0, 800.0),
        (2, 4, 60.0, 400.0),
    ]
    assert found.remote_gb_s == {(0, 2): 30.0, (2, 0): 25.0}
    assert (found.barrier_us, found.barrier_across_us, found.origin) == (0.5, 2.5, "measured")


def test_fewer_threads_multiply_and_read_less_and_more_do_not_read_more() -> None:
    half = machine_speed((Team(0, 0, (0, 1, 2, 3)),), host("2s/2n/16c"), parse_measured(recorded()))
    assert (half.nodes[0].read_gb_s, half.nodes[0].int8_gops) == (50.0, 400.0)
    double = machine_speed((Team(0, 0, tuple(range(16))),), host("2s/2n/16c"), parse_measured(recorded()))
    assert (double.nodes[0].read_gb_s, double.nodes[0].int8_gops) == (100.0, 1600.0)


def test_a_node_without_memory_reads_what_was_measured_from_its_nearest() -> None:
    raw = recorded()
    found = machine_speed(
        (Team(0, 0, tuple(range(8))), Team(2, 0, (8, 9, 10, 11))), host("2s/2n/16c"), parse_measured(raw)
    )
    assert (found.nodes[1].read_gb_s, found.nodes[1].memory) == (25.0, 0)


def test_a_measurement_of_other_nodes_is_refused() -> None:
    with pytest.raises(UserError, match="of node 0, 2, and node 1 is to be used") as error:
        machine_speed((Team(1, 1, (0,)),), host("2s/2n/16c"), parse_measured(recorded()))
    assert error.value.param == "numa_measured"


def test_without_a_measurement_far_memory_is_slower_than_near_and_it_is_said() -> None:
    shapes = [Shape(0, 8), Shape(1, 8), Shape(2, 8, socket=1)]
    made = host_of(shapes)
    teams = tuple(Team(n, n, made.nodes[n].cpus) for n in range(3))
    found = machine_speed(teams, made, None)
    local = found.nodes[0].read_gb_s
    assert local > found.remote_gb_s[0, 1] > found.remote_gb_s[0, 2] > 0
    assert found.barrier_across_us > found.barrier_us > 0
    assert "not measured" in found.origin


def test_threads_of_one_core_count_once() -> None:
    made = host("2s/2n/16c/smt2")
    cores = tuple(cpu.id for cpu in made.cpus if cpu.node == 0 and cpu.id == cpu.core)
    both = tuple(cpu.id for cpu in made.cpus if cpu.node == 0)
    assert len(both) == 2 * len(cores)
    for measured in (None, parse_measured(recorded())):
        one, two = (machine_speed((Team(0, 0, cpus),), made, measured).nodes[0] for cpus in (cores, both))
        assert (one.read_gb_s, one.int8_gops) == (two.read_gb_s, two.int8_gops)


def test_no_team_is_refused() -> None:
    with pytest.raises(UserError, match="no node has a CPU"):
        machine_speed((), host("1s/1n/4c"), None)


# The file.


def test_a_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps(recorded()))
    found = load_measured(file)
    assert isinstance(found, Measured) and found.read_gb_s[0, 0] == 100.0 and found.read_gb_s[2, 0] == 25.0


def without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda raw: raw.pop(key)


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another format": (lambda raw: raw.update(format="homenode-host/1"), "\"format\" is 'homenode-host/1'"),
    "no nodes": (lambda raw: raw.update(nodes=[]), '"nodes" is empty'),
    "nodes missing": (without("nodes"), '"nodes" is no list'),
    "a node twice": (lambda raw: raw["nodes"][1].update(node=0), "names a node twice"),
    "no threads": (lambda raw: raw["nodes"][0].update(threads=0), '"nodes"\\[0\\] has 0 threads'),
    "a speed of 0": (lambda raw: raw["nodes"][0].update(read_gb_s=0), '"read_gb_s" of "nodes"\\[0\\] is 0'),
    "a speed in words": (
        lambda raw: raw["nodes"][1].update(int8_gops="fast"),
        '"int8_gops" of "nodes"\\[1\\] is \'fast\'',
    ),
    "an endless speed": (lambda raw: raw["pairs"][0].update(read_gb_s=float("inf")), "wanted a number above 0"),
    "true as a number": (lambda raw: raw["pairs"][0].update(read_gb_s=True), "is True"),
    "a pair missing": (lambda raw: raw["pairs"].pop(), "lacks node 2 reading from node 0"),
    "a pair of a stranger": (lambda raw: raw["pairs"][0].update(reader=7), "reads from node 7"),
    "a pair that is no object": (lambda raw: raw["pairs"].append(3), 'has no "reader"'),
    "no barrier": (without("barrier_across_us"), 'has no "barrier_across_us"'),
}


@pytest.mark.parametrize(("spoil", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_a_wrong_file_is_refused_with_name_and_fault(
    spoil: Callable[[dict[str, Any]], Any], message: str, tmp_path: Path
) -> None:
    raw = recorded()
    spoil(raw)
    file = tmp_path / "nodes.json"
    file.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=message) as error:
        load_measured(file)
    assert str(file) in error.value.message and "homenode bench nodes --out" in error.value.message


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"[" * 100_000, b"[]", b"", b"{"], ids=["no text", "nested", "a list", "empty", "cut off"]
)
def test_what_is_no_json_object_is_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    file.write_bytes(data)
    with pytest.raises(UserError, match="is no measurement of nodes"):
        load_measured(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot read the measured nodes .*: No such file"):
        load_measured(tmp_path / "none.json")
