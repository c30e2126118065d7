"""Where the rows of a model's matrices lie, over recorded hosts and over hosts and shapes nobody has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.errors import InternalError, PlacementError, UserError
from homenode.host.plan.numa.demand import Decision, NumaDemand
from homenode.host.plan.numa.node_teams import NodeTeam
from homenode.host.plan.numa.policy import Teams, numa_plan
from homenode.host.topology.host import Host
from homenode.model.weights.layout import MatrixLayout, OtherParts, WeightLayout
from homenode.model.weights.node_placement import (
    GROUP_ROWS,
    MatrixNodes,
    WeightNodes,
    member_rows,
    plan_weight_nodes,
)
from homenode.model.weights.numa_layout import NumaLayout, numa_layout
from homenode.numa_policy import PLANNED_POLICIES
from tests.host_values import Shape, host_of
from tests.recorded import NAMES, recorded_host

GIB = 1 << 30


def matrix(name: str, rows: int, columns: int = 64, target: str = "Q8_0") -> MatrixLayout:
    size = rows * (columns // 32 * 34 if target == "Q8_0" else 4 * columns)
    return MatrixLayout(name, rows, columns, target, target, "as stored", size, size)


def layout_of(*matrices: MatrixLayout, vector_bytes: int = 4096) -> WeightLayout:
    return WeightLayout(matrices, vector_bytes)


MODEL = layout_of(
    matrix("model.embed_tokens.weight", 4001),
    matrix("model.layers.0.self_attn.q_proj.weight", 896),
    matrix("model.layers.0.self_attn.k_proj.weight", 128),
    matrix("model.layers.0.mlp.down_proj.weight", 900, 256),
    matrix("lm_head.weight", 4001),
)


def asked_by_none(teams: Teams) -> Decision:
    raise AssertionError("only auto asks")


def planned(on: Host, policy: str, layout: WeightLayout = MODEL, **more: object) -> NumaLayout:
    return numa_layout(layout, on, NumaDemand(policy, **more), asked_by_none)  # type: ignore[arg-type]


def copies_of_rows(home: MatrixNodes) -> set[int]:
    """How often rows are held."""
    held: Counter[int] = Counter(dict.fromkeys(range(home.rows), 0))
    for runs in home.nodes.values():
        for first, past in runs:
            assert 0 <= first < past <= home.rows
            held.update(range(first, past))
    return set(held.values())


def check_homes(homes: WeightNodes, teams: Teams) -> None:
    """What a policy promises, of every matrix."""
    holders = {team.memory_node for team in teams}
    copies = {"mirror": len(holders), "replicate": len(teams)}.get(homes.policy, 1)
    assert homes.total == copies * homes.size, "copies of everything, vectors included"
    assert {node for node, size in homes.nodes.items() if size} <= holders
    for home in homes.matrices:
        assert sum(home.node_bytes.values()) == copies * home.size
        if homes.policy == "interleave":
            assert not home.nodes
            assert max(home.node_bytes.values()) - min(home.node_bytes.values()) <= 1
        else:
            assert copies_of_rows(home) == {len(holders) if homes.policy in ("mirror", "replicate") else 1}


def check_proportion(home: MatrixNodes, teams: Teams) -> None:
    """A node's rows differ from its threads' part by less than a group at each end of each of its runs."""
    threads = Counter[int]()
    for team in teams:
        threads[team.memory_node] += len(team.cpus)
    for node, count in threads.items():
        runs = home.nodes.get(node, ())
        held = sum(past - first for first, past in runs)
        assert abs(held - home.rows * count / sum(threads.values())) <= GROUP_ROWS * (
            len([t for t in teams if t.memory_node == node]) + 1
        )


@pytest.mark.parametrize("policy", PLANNED_POLICIES)
@pytest.mark.parametrize("name", NAMES)
def test_every_policy_on_every_recorded_host(name: str, policy: str) -> None:
    made = planned(recorded_host(name), policy)
    check_homes(made.weights, made.plan.teams)
    if made.plan.policy == "shard":
        for home in made.weights.matrices:
            check_proportion(home, made.plan.teams)
    told = [finding.code for finding in made.plan.findings]
    assert (made.plan.policy == policy) == (told == [] or policy == "local"), "what is not done as asked is told"
    assert (len(made.plan.teams) == 1) == (made.plan.policy == "local")


def test_some_recorded_hosts_spread_and_some_cannot() -> None:
    policies = Counter(planned(recorded_host(name), "shard").plan.policy for name in NAMES)
    assert policies["shard"] > 10
    assert policies["local"] > 5


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=2, max_size=8),
    st.lists(st.integers(1, 3000), min_size=1, max_size=6),
    st.sampled_from(PLANNED_POLICIES),
)
def test_any_teams_and_any_rows(shapes: list[tuple[int, int]], rows: list[int], policy: str) -> None:
    teams: Teams = tuple(
        NodeTeam(node, borrowed if borrowed < node else node, tuple(range(count)), None)
        for node, (count, borrowed) in enumerate(shapes)
    )
    teams = teams[:1] if policy == "local" else teams
    homes = plan_weight_nodes(layout_of(*(matrix(f"m{at}", count) for at, count in enumerate(rows))), teams, policy)
    check_homes(homes, teams)
    if policy == "shard":
        for home in homes.matrices:
            check_proportion(home, teams)


@given(st.integers(1, 10_000), st.integers(1, 300))
def test_threads_have_whole_groups_as_even_as_they_can_be(rows: int, members: int) -> None:
    runs = member_rows(rows, members)
    assert len(runs) == members
    assert (runs[0][0], runs[-1][1]) == (0, rows)
    assert all(before[1] == after[0] for before, after in pairwise(runs))
    assert all(first % GROUP_ROWS == 0 for first, past in runs if first < past)
    groups = [-(-(past - first) // GROUP_ROWS) for first, past in runs]
    assert max(groups) - min(groups) <= 1


def test_more_threads_than_groups_leave_some_without_rows() -> None:
    assert member_rows(40, 4) == ((0, 0), (0, 32), (32, 32), (32, 40))


def test_shard_gives_rows_by_threads() -> None:
    made = planned(
        host_of([Shape(0, 6), Shape(7, 2)]), "shard", layout_of(matrix("w", 320), vector_bytes=100), reserve=0
    )
    (home,) = made.weights.matrices
    assert home.nodes == {0: ((0, 224),), 7: ((224, 320),)}, "ten groups over eight threads: seven and three"
    assert made.weights.nodes == {0: 224 * 68 + 100, 7: 96 * 68}


def test_uneven_rows_fill_their_last_group() -> None:
    (home,) = planned(host_of([Shape(0, 2)]), "local", layout_of(matrix("w", 33))).weights.matrices
    assert (home.rows, home.size) == (33, 64 * 68)


def test_a_node_without_memory_holds_nothing() -> None:
    on = host_of([Shape(0, 4), Shape(1, 4, memory=0), Shape(2, 4)], distances={(0, 1): 30, (1, 2): 12, (0, 2): 30})
    homes = planned(on, "shard", reserve=0).weights
    assert homes.nodes[1] == 0
    assert 1.7 < homes.nodes[2] / homes.nodes[0] < 2.3
    assert planned(on, "mirror", reserve=0).weights.total == 2 * homes.size
    assert planned(on, "replicate", reserve=0).weights.total == 3 * homes.size, (
        "three engines, two of them on one node's memory"
    )


def test_chosen_matrices_are_mirrored_and_the_others_sharded() -> None:
    on = host_of([Shape(0, 4), Shape(1, 4)])
    made = planned(on, "shard", mirror_tensors=("lm_head*", "*.k_proj.*"))
    copies = {home.name: copies_of_rows(home) for home in made.weights.matrices}
    assert [name for name, held in copies.items() if held == {2}] == [
        "model.layers.0.self_attn.k_proj.weight",
        "lm_head.weight",
    ]
    assert {frozenset(held) for held in copies.values()} == {frozenset({1}), frozenset({2})}


def test_a_pattern_that_matches_nothing_is_refused_on_one_node_too() -> None:
    for shapes in ([Shape(0, 4)], [Shape(0, 4), Shape(1, 4)]):
        with pytest.raises(
            UserError, match=r"'nosuch\*' matches none of the 5 matrices .* like model.embed_tokens.weight"
        ):
            planned(host_of(shapes), "shard", mirror_tensors=("lm_head*", "nosuch*"))


@pytest.mark.parametrize("policy", [policy for policy in PLANNED_POLICIES if policy != "shard"])
def test_patterns_have_a_meaning_under_shard_only(policy: str) -> None:
    with pytest.raises(UserError, match=f"--numa {policy}"):
        planned(host_of([Shape(0, 4), Shape(1, 4)]), policy, mirror_tensors=("lm_head*",))


def test_local_takes_the_node_with_most_cores_then_with_most_memory_or_the_first_named() -> None:
    def home(*shapes: Shape, **more: object) -> tuple[int, int]:
        (team,) = planned(host_of(shapes), "local", **more).plan.teams
        return team.node, len(team.cpus)

    assert home(Shape(0, 4), Shape(1, 6)) == (1, 6), "the core that is kept is on the other node"
    assert home(Shape(0, 4), Shape(1, 4, memory=128 * GIB), Shape(2, 4), reserve=0) == (1, 4)
    assert home(Shape(0, 4), Shape(1, 6), nodes="0,1") == (0, 4)
    with pytest.raises(UserError, match="--threads 7: this process may use 6 CPUs on NUMA node 1"):
        home(Shape(0, 4), Shape(1, 6), threads=7)


def test_auto_asks_and_says_why() -> None:
    asked: list[Teams] = []

    def choose(teams: Teams) -> Decision:
        asked.append(teams)
        return Decision("mirror", "41 % faster than shard")

    plan = numa_plan(host_of([Shape(0, 4), Shape(1, 4)]), NumaDemand("auto"), choose)
    assert (plan.asked, plan.policy, plan.why, len(plan.teams)) == ("auto", "mirror", "41 % faster than shard", 2)
    assert [team.node for team in asked[0]] == [0, 1]


def test_auto_that_takes_one_node_lowers_the_threads_to_it() -> None:
    on = host_of([Shape(0, 4), Shape(1, 4)])
    plan = numa_plan(on, NumaDemand("auto", threads=8), lambda _: Decision("local", "one is enough"))
    assert [(team.node, len(team.cpus)) for team in plan.teams] == [(0, 4)]
    (named,) = numa_plan(on, NumaDemand("auto"), lambda _: Decision("local", "one is enough", (1,))).teams
    assert named.node == 1, "the node that was chosen"


@pytest.mark.parametrize("policy", PLANNED_POLICIES)
def test_one_node_makes_everything_local_and_strict_refuses(policy: str) -> None:
    plan = numa_plan(host_of([Shape(3, 4)]), NumaDemand(policy), asked_by_none)
    (finding,) = plan.findings
    assert (plan.policy, finding.code) == ("local", "numa_single_node")
    assert finding.severity == ("info" if policy == "local" else "warning")
    if policy == "local":
        assert numa_plan(host_of([Shape(3, 4)]), NumaDemand(policy, strict=True), asked_by_none).policy == "local"
        return
    with pytest.raises(PlacementError, match="two NUMA nodes") as caught:
        numa_plan(host_of([Shape(3, 4)]), NumaDemand(policy, strict=True), asked_by_none)
    assert caught.value.code == "several_nodes_needed"


def test_auto_on_one_node_is_no_trouble_even_if_strict() -> None:
    plan = numa_plan(host_of([Shape(0, 4)]), NumaDemand("auto", strict=True), asked_by_none)
    assert (plan.policy, [finding.severity for finding in plan.findings]) == ("local", ["info"])


@pytest.mark.parametrize(
    ("shapes", "demand", "word"),
    [
        ([Shape(0, 4), Shape(1, 4)], NumaDemand("shard", nodes="1"), "--numa-nodes 1 names one node"),
        ([Shape(0, 4), Shape(1, 4)], NumaDemand("shard", threads=1), "--threads 1 are on node 0 only"),
        ([Shape(0, 4), Shape(1, 0)], NumaDemand("shard"), "one NUMA node with CPUs"),
    ],
)
def test_it_is_said_why_there_is_one_node(shapes: list[Shape], demand: NumaDemand, word: str) -> None:
    (finding,) = numa_plan(host_of(shapes), demand, asked_by_none).findings
    assert word in finding.message


def test_what_does_not_fit_is_refused_with_the_numbers_and_what_would_fit() -> None:
    size = planned(host_of([Shape(0, 4), Shape(1, 4)]), "shard").weights.size
    small = host_of([Shape(0, 4, memory=size * 3 // 4), Shape(1, 4, memory=size * 3 // 4)])
    with pytest.raises(PlacementError, match=r"What fits: --numa shard .*, --numa interleave") as caught:
        planned(small, "mirror")
    assert caught.value.code == "weights_do_not_fit"
    assert "node 0" in caught.value.seen
    assert "node 1" in caught.value.wanted
    assert "--numa local" not in caught.value.remedy
    assert planned(small, "shard").weights.too_full == {}


def test_a_limit_of_the_process_counts_for_all_nodes_together() -> None:
    on = host_of([Shape(0, 4), Shape(1, 4)])
    size = planned(on, "shard").weights.size
    limited = replace(on, allowance=replace(on.allowance, memory_available=size + 1000))
    assert planned(limited, "shard").weights.total == size
    with pytest.raises(PlacementError, match="what this process may take"):
        planned(limited, "mirror")


def test_where_nothing_fits_that_is_said() -> None:
    with pytest.raises(PlacementError, match="No policy fits"):
        planned(
            host_of([Shape(0, 4, memory=1 << 20), Shape(1, 4, memory=1 << 20)]),
            "local",
            layout_of(matrix("w", 1 << 20)),
        )


def test_a_layout_is_not_made_of_what_is_not_settled() -> None:
    two = (NodeTeam(0, 0, (0,), None), NodeTeam(1, 1, (1,), None))
    for policy, teams in (("auto", two), ("local", two), ("shard", ())):
        with pytest.raises(InternalError):
            plan_weight_nodes(MODEL, teams, policy)


def test_a_pattern_may_match_matrices_that_other_parts_of_the_model_have() -> None:
    """Each worker is told the patterns for all: one that matches nothing anywhere is a mistake, one for another stage
    is not.
    """
    part = replace(MODEL, matrices=MODEL.matrices[:2], other_parts=OtherParts(("lm_head.weight",)))
    teams = [NodeTeam(0, 0, (0, 1), GIB), NodeTeam(1, 1, (2, 3), GIB)]
    homes = plan_weight_nodes(part, teams, "shard", ["lm_head*"])
    assert all(len(matrix.nodes) == 2 and copies_of_rows(matrix) == {1} for matrix in homes.matrices)
    with pytest.raises(UserError, match="matches none"):
        plan_weight_nodes(part, teams, "shard", ["*down_proj*"])
