"""What --verbose tells of weights on nodes: each policy by its name, each node with what is planned and
what is there.
"""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.engine.binding import EngineBinding
from homenode.engine.memory.report import memory_lines
from homenode.host.bind.memory.residency import PlannedRange
from tests.placement_hosts import host

MIB = 2**20
TWO = host("2s/2n/4c")  # CPUs 0-3: nodes 0 and 1


def planned(*on: tuple[int, ...]) -> dict[str, list[PlannedRange]]:
    return {"weights": [PlannedRange(0, 10 * MIB, nodes) for nodes in on], "kv": [], "scratch": []}


@pytest.mark.parametrize(
    ("numa", "on", "words"),
    [
        ("mirror", ((0,), (1,)), "weights are mirrored: nodes 0-1 each have a whole copy"),
        ("shard", ((0,), (1,)), "weights are sharded: nodes 0-1 each have the rows"),
        ("interleave", ((0, 1),), "weights are interleaved page by page over nodes 0-1"),
        ("local", ((1,),), "weights are all on node 1"),
        ("replicate", ((1,),), "weights are replicated: this engine has a whole copy of its own on node 1"),
        (None, ((0,),), "all that this engine uses is on node 0"),
        (None, ((0,), (1,)), "each thread touched its rows first, on nodes 0-1"),
    ],
)
def test_how_weights_lie_is_told_by_the_policys_name(
    numa: str | None, on: tuple[tuple[int, ...], ...], words: str
) -> None:
    binding = EngineBinding((0, 1), numa=numa, numa_why="it was asked for" if numa else "")
    lines = memory_lines(binding, TWO, planned(*on), {})
    assert words in lines[0]
    assert lines[0].endswith("(it was asked for)") == (numa is not None)
    assert [int(number) for line in lines for number in re.findall(r"^node (\d+): ", line)] == sorted(
        nodes[0] for nodes in on if len(nodes) == 1
    )
    assert any("10MiB of weights" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("present", "local", "words"),
    [
        (10 * MIB, 10 * MIB, "10MiB of weights (100% is there)"),
        (10 * MIB, 5 * MIB, "10MiB of weights (50% is there)"),
        (4 * MIB, 4 * MIB, "10MiB of weights (100% of the 4MiB in use is there)"),
        (0, 0, "10MiB of weights (not touched yet)"),
        (None, 0, "10MiB of weights (the kernel does not tell where it lies)"),
    ],
)
def test_what_is_there_is_told_beside_what_was_planned(present: int | None, local: int, words: str) -> None:
    seen = {"weights": None if present is None else [{"node": 0, "present": present, "local": local}]}
    assert words in memory_lines(EngineBinding((0,)), TWO, planned((0,)), seen)[1]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True))
def test_every_pinned_thread_is_on_the_line_of_its_node(team: list[int]) -> None:
    lines = memory_lines(EngineBinding(tuple(team)), TWO, planned((0,), (1,)), {})
    counted = [int(number) for line in lines for number in re.findall(r"(\d+) compute thread", line)]
    assert sum(counted) == len(team)


def test_mirrored_tensors_of_shards_are_named() -> None:
    binding = EngineBinding((0, 1), numa="shard", mirror_tensors=("output*",))
    assert "mirrored are those named output*" in memory_lines(binding, TWO, planned((0,), (1,)), {})[0]


def test_a_machine_without_nodes_is_said_to_be_one() -> None:
    assert memory_lines(EngineBinding((0,)), TWO, planned(), {}) == [
        "where weights lie is not known: nothing is said about nodes, or this machine tells of none"
    ]
