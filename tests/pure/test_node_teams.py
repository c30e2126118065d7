"""Teams of an engine over several nodes: who computes where, and whose memory it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.errors import PlacementError, UserError
from homenode.host.plan.numa.node_teams import NodeTeam, node_teams, parse_node_list
from homenode.host.plan.resources.core_order import in_proportion
from homenode.host.topology.host import Host
from tests.host_values import Shape, host_of
from tests.placement_hosts import host
from tests.recorded import NAMES, recorded_host


def sizes(teams: tuple[NodeTeam, ...]) -> list[tuple[int, int]]:
    return [(team.node, len(team.cpus)) for team in teams]


def test_a_thread_for_each_core_of_every_node_and_one_core_for_everything_else() -> None:
    teams = node_teams(host("2s/2n/16c/smt2"), None, None, 1)
    assert [(team.node, team.memory_node, team.cpus) for team in teams] == [
        (0, 0, tuple(range(8))),
        (1, 1, tuple(range(8, 15))),
    ]
    assert teams[0].memory == 16 << 30, "what is free is not told of a made-up host: all it has"


def test_two_threads_a_core_are_siblings_beside_each_other_and_the_core_kept_is_whole() -> None:
    first, second = node_teams(host("1s/2n/4c/smt2"), None, None, 2)
    assert (first.cpus, second.cpus) == ((0, 4, 1, 5), (2, 6)), "core 3 with CPUs 3 and 7 is for everything else"


def test_siblings_compute_only_when_there_are_more_threads_than_cores() -> None:
    on = host("1s/2n/4c/smt2")
    assert [team.cpus for team in node_teams(on, None, 4, 1)] == [(0, 1), (2, 3)]
    assert [team.cpus for team in node_teams(on, None, 6, 1)] == [(0, 1, 4), (2, 3, 6)]
    with pytest.raises(UserError, match="--threads 9: this process may use 8 CPUs on NUMA node 0-1; give 8 or less"):
        node_teams(on, None, 9, 1)


def test_threads_and_reserve_are_shared_out_in_proportion_to_cores() -> None:
    uneven = host_of([Shape(0, 12), Shape(5, 4)])
    assert sizes(node_teams(uneven, None, 8, 1)) == [(0, 6), (5, 2)]
    assert sizes(node_teams(uneven, None, None, 1, reserve=4)) == [(0, 9), (5, 3)]
    assert sizes(node_teams(uneven, None, None, 1, reserve=0)) == [(0, 12), (5, 4)]
    assert sizes(node_teams(uneven, None, 1, 1)) == [(0, 1)], "a node without a thread has no team"
    with pytest.raises(UserError, match="--reserve-cpus 16"):
        node_teams(uneven, None, None, 1, reserve=16)


def test_named_nodes_come_in_their_order_and_others_are_the_reserve() -> None:
    on = host("2s/4n/16c")
    assert sizes(node_teams(on, (2, 0), None, 1)) == [(2, 4), (0, 4)], "nodes 1 and 3 are left for everything else"
    assert sizes(node_teams(on, (2, 0), None, 1, reserve=9)) == [(2, 4), (0, 3)], (
        "eight of the nine cores are there anyway"
    )


def test_a_node_without_memory_takes_that_of_the_nearest() -> None:
    far = {(0, 1): 30, (1, 2): 12, (0, 2): 30}
    teams = node_teams(host_of([Shape(0, 2), Shape(1, 2, memory=0), Shape(2, 2)], distances=far), None, None, 1)
    assert [(team.node, team.memory_node) for team in teams] == [(0, 0), (1, 2), (2, 2)]


def test_memory_that_is_not_allowed_is_not_taken() -> None:
    teams = node_teams(host_of([Shape(0, 2), Shape(1, 2)], mems=(0,)), None, None, 1)
    assert [(team.node, team.memory_node) for team in teams] == [(0, 0), (1, 0)]


def test_free_memory_is_told_where_it_is_known() -> None:
    on = host("1s/2n/4c")
    nodes = tuple(replace(node, free=1000 + node.id) for node in on.nodes)
    assert [team.memory for team in node_teams(replace(on, nodes=nodes), None, None, 1)] == [1000, 1001]


def test_a_cpuset_is_kept_to() -> None:
    teams = node_teams(host_of([Shape(0, 4), Shape(1, 4)], allowed="2-4"), None, None, 1, reserve=0)
    assert [team.cpus for team in teams] == [(2, 3), (4,)]


@pytest.mark.parametrize(("quota", "threads"), [(2.5, 2), (0.5, 1), (100.0, 8)])
def test_a_cpu_quota_bounds_the_threads(quota: float, threads: int) -> None:
    teams = node_teams(host_of([Shape(0, 4), Shape(1, 4)], quota=quota), None, None, 1, reserve=0)
    assert sum(count for _, count in sizes(teams)) == threads


def test_a_host_without_nodes_is_one() -> None:
    (team,) = node_teams(host("1s/0n/4c"), None, None, 1)
    assert (team.node, team.memory_node, team.cpus, team.memory) == (0, 0, (0, 1, 2), None)


@pytest.mark.parametrize(
    ("nodes", "code"),
    [((7,), "no_such_node"), ((2,), "node_without_cpus"), ((), "bad_node_list")],
    ids=["missing", "no CPUs", "none"],
)
def test_nodes_that_cannot_compute_are_refused_by_name(nodes: tuple[int, ...], code: str) -> None:
    with pytest.raises(PlacementError) as caught:
        node_teams(host_of([Shape(0, 2), Shape(1, 2), Shape(2, 0)]), nodes, None, 1)
    assert caught.value.code == code
    assert not nodes or str(nodes[0]) in caught.value.message


def test_no_allowed_cpu_at_all_is_refused() -> None:
    on = host("1s/1n/2c")
    with pytest.raises(PlacementError) as caught:
        node_teams(replace(on, allowance=replace(on.allowance, cpus=(), physical_cpus=())), None, None, 1)
    assert caught.value.code == "insufficient_cpus"


def test_node_lists_keep_their_order() -> None:
    assert parse_node_list("2,0-1,0") == (2, 0, 1)


@pytest.mark.parametrize("text", ["", "x", "1,", "3-1", "1;2"])
def test_other_node_lists_are_refused(text: str) -> None:
    with pytest.raises(PlacementError, match="--numa-nodes") as caught:
        parse_node_list(text)
    assert caught.value.code == "bad_node_list"


@given(st.data())
def test_shares_add_up_are_in_proportion_and_within_their_sizes(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(0, 200), min_size=1, max_size=12).filter(any))
    total = data.draw(st.integers(0, sum(sizes)))
    shares = in_proportion(total, sizes)
    assert sum(shares) == total
    assert all(
        abs(share - total * size / sum(sizes)) < 1 and share <= size for share, size in zip(shares, sizes, strict=True)
    )


def check_teams(on: Host, teams: tuple[NodeTeam, ...]) -> None:
    """What holds of every host: no CPU twice, all allowed, each on its team's node, memory from a node that
    has some.
    """
    cpus = [cpu for team in teams for cpu in team.cpus]
    assert len(set(cpus)) == len(cpus) > 0
    assert set(cpus) <= set(on.allowance.cpus)
    for team in teams:
        told = {on.cpu_by_id[cpu].node for cpu in team.cpus}
        assert told in ({team.node}, {None})
        home = on.node_by_id.get(team.memory_node)
        assert home is None or home.memory != 0 or not any(node.memory for node in on.nodes)


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_host_has_teams(name: str) -> None:
    on = recorded_host(name)
    teams = node_teams(on, None, None, 1)
    check_teams(on, teams)
    cores = {on.cpu_by_id[cpu].core for team in teams for cpu in team.cpus}
    assert len(cores) == sum(len(team.cpus) for team in teams), "one thread a core"
    allowed = [on.cpu_by_id[cpu] for cpu in on.allowance.cpus]
    told = {cpu.core for cpu in allowed if cpu.node is not None} or {cpu.core for cpu in allowed}
    slow = {cpu.core for cpu in allowed if cpu.low_power}
    assert len(told) - len(cores) == max(len(slow), 1 if len(told) > 2 else 0), "cores of no node are left out"
    check_teams(on, node_teams(on, None, None, 2))


@given(
    st.lists(st.tuples(st.integers(1, 24), st.integers(1, 2), st.booleans()), min_size=1, max_size=6),
    st.integers(0, 60),
    st.sampled_from((1, 2)),
)
def test_any_number_of_threads_is_placed_in_proportion(
    shapes: list[tuple[int, int, bool]], wanted: int, per_core: int
) -> None:
    on = host_of(
        [
            Shape(3 * at, cores, smt, memory=64 << 30 if full or at == 0 else 0)
            for at, (cores, smt, full) in enumerate(shapes)
        ]
    )
    threads = min(wanted, len(on.allowance.cpus)) or None
    teams = node_teams(on, None, threads, per_core)
    check_teams(on, teams)
    if threads is not None:
        assert sum(len(team.cpus) for team in teams) == threads
    usual = {3 * at: cores * min(smt, per_core) for at, (cores, smt, _) in enumerate(shapes)}
    if threads is not None and threads <= sum(usual.values()):
        assert all(abs(len(team.cpus) - threads * usual[team.node] / sum(usual.values())) < 1 for team in teams)
