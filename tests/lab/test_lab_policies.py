"""Where `homenode plan --weights` would put the rows of a model on this machine, under each policy of `--numa`."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.engine.live import BUILTIN
from tests.lab.machine import BARE, EMPTY, NODES, WHOLE, homenode, several_nodes

pytestmark = several_nodes
ROUNDING = 0.03  # of the model's bytes: rows go in groups, and pages belong to one node
# A node without memory has an engine of its own under replicate, whose copy lies on the nearest node.
COPIES = {"shard": 1, "interleave": 1, "local": 1, "mirror": len(WHOLE), "replicate": len(WHOLE) + len(EMPTY)}


@cache
def plans_weights() -> bool:
    return "--weights" in homenode("plan", "--help").out


@cache
def layout(policy: str) -> dict[str, Any]:
    if not plans_weights():
        pytest.skip("`homenode plan` has no option --weights yet")
    done = homenode("plan", "--weights", BUILTIN.parent, "--numa", policy, "--json")
    assert done.code in (0, 1), done.err  # 1: with a warning, as of a node without memory
    found: dict[str, Any] = done.json
    return found


def times_held(parameter: dict[str, Any]) -> set[int]:
    """On how many nodes the rows of a matrix are."""
    held = [0] * parameter["rows"]
    for ranges in parameter["nodes"].values():
        for first, past in ranges:
            for row in range(first, past):
                held[row] += 1
    return set(held)


@pytest.mark.parametrize("policy", COPIES)
def test_bytes_of_the_weights_on_the_nodes_of_this_machine(policy: str) -> None:
    plan = layout(policy)
    bytes_on = {int(node): held["bytes"] for node, held in plan["nodes"].items()}
    assert plan["policy"] == policy and plan["why"]
    near = {node.id for node in WHOLE}  # memory with threads beside it
    assert {node for node, size in bytes_on.items() if size} <= (
        near | {node.id for node in BARE} if policy == "interleave" else near
    )
    assert sum(bytes_on.values()) == pytest.approx(COPIES[policy] * plan["model_bytes"], rel=ROUNDING)
    if policy == "mirror":
        assert {bytes_on[node] for node in near} == {plan["model_bytes"]}


@pytest.mark.parametrize("policy", ["shard", "mirror", "local"])
def test_every_row_is_held_as_often_as_the_policy_says(policy: str) -> None:
    parameters = layout(policy)["parameters"]
    matrices = {name: parameter for name, parameter in parameters.items() if parameter["rows"] >= 64}
    assert len(matrices) > 10
    assert {name: times_held(parameter) for name, parameter in matrices.items()} == {
        name: {COPIES[policy]} for name in matrices
    }


def test_the_automatic_choice_is_one_of_the_policies_and_says_why() -> None:
    plan = layout("auto")
    assert plan["policy"] in COPIES and plan["why"]
    assert {int(node) for node in plan["nodes"]} <= set(NODES)
