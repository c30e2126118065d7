"""`topo-affinity`: each test names the rule it holds to."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand
from homenode.host.plan.policies import topo_affinity
from homenode.host.topology.host import Host
from homenode.host.topology.source import CommandResult
from tests.examples import examples
from tests.npu_hosts import Chip, npu_host, single_chips
from tests.pools import pools_of

FOUR_NODES = {0: "0-15", 1: "16-31", 2: "32-47", 3: "48-63"}
EIGHT_NODES = {node: f"{12 * node}-{12 * node + 11}" for node in range(8)}


def refusal(host: Host, demand: Demand) -> PlacementError:
    with pytest.raises(PlacementError) as caught:
        topo_affinity.plan(host, demand)
    assert caught.value.seen and caught.value.wanted and caught.value.remedy
    return caught.value


def test_an_affinity_of_one_node_is_extended_to_the_next() -> None:
    plan = topo_affinity.plan(npu_host(FOUR_NODES, single_chips({0: "16-31"})), Demand())
    assert plan.strategy == "topo-affinity"
    assert pools_of(plan) == {0: "16-47"}
    assert plan.workers[0].memory_node == 1


def test_the_rest_of_its_own_node_is_not_added() -> None:
    host = npu_host(FOUR_NODES, single_chips({0: "20-27"}))
    assert pools_of(topo_affinity.plan(host, Demand())) == {0: "20-27,32-47"}


def test_identical_pools_are_split_in_the_order_of_ids() -> None:
    plan = topo_affinity.plan(npu_host(EIGHT_NODES, single_chips({3: "24-35", 1: "24-35"})), Demand())
    assert pools_of(plan) == {1: "24-35", 3: "36-47"}
    assert [worker.memory_node for worker in plan.workers] == [2, 3]


def test_what_an_even_split_leaves_over_goes_to_the_last() -> None:
    host = npu_host({0: "0-9", 1: "10-16"}, single_chips(dict.fromkeys(range(3), "0-9")))
    assert pools_of(topo_affinity.plan(host, Demand())) == {0: "0-4", 1: "5-9", 2: "10-16"}
    assert topo_affinity.split(range(14), [4, 6, 9]) == {4: (0, 1, 2, 3), 6: (4, 5, 6, 7), 9: (8, 9, 10, 11, 12, 13)}


def test_a_pool_of_four_fails_its_own_rank_and_not_that_with_six() -> None:
    host = npu_host({0: "0-6", 1: "7-13"}, single_chips(dict.fromkeys(range(3), "0-6")))
    for rank in (0, 1):
        error = refusal(host, Demand(local_rank=rank))
        assert (error.code, error.seen) == ("pool_too_small", f"CPUs {'0-3' if rank == 0 else '4-7'}")
    assert pools_of(topo_affinity.plan(host, Demand(local_rank=2))) == {2: "8-13"}


def test_a_rank_that_is_refused_is_in_the_plan_of_all_ranks_and_not_bound() -> None:
    host = npu_host(FOUR_NODES, single_chips({0: "0-15", 1: "", 2: "32-47"}))
    plan = topo_affinity.plan(host, Demand())
    assert [(worker.device, worker.bound, format_cpu_list(worker.cpus)) for worker in plan.workers] == [
        (0, True, "0-31"), (1, False, ""), (2, True, "32-63")
    ]  # fmt: skip
    assert pools_of(plan) == {0: "0-31", 2: "32-63"}
    (told,) = [finding for finding in plan.findings if finding.severity == "error"]
    assert told.code == "affinity_conflict" and "rank 1" in told.message and "not reported" in told.message


def test_a_hidden_npu_with_the_same_affinity_keeps_its_share() -> None:
    host = npu_host(EIGHT_NODES, single_chips({0: "36-47", 2: "36-47", 4: "0-11"}, busy=[2]), allowed="36-59")
    plan = topo_affinity.plan(host, Demand(visible=(2,), local_rank=0))
    assert pools_of(plan) == {2: "48-59"}
    assert plan.workers[0].device == 2
    (hidden,) = [finding for finding in plan.findings if finding.code == "hidden_devices_counted"]
    assert "NPU 0," in hidden.message


def test_two_single_card_services_of_one_affinity_do_not_overlap() -> None:
    chips = single_chips({0: "36-47", 2: "36-47"})
    first, second = (topo_affinity.plan(npu_host(EIGHT_NODES, chips), Demand(visible=(npu,))) for npu in (0, 2))
    assert (pools_of(first), pools_of(second)) == ({0: "36-47"}, {2: "48-59"})


def test_a_hidden_npu_of_another_cpuset_takes_nothing() -> None:
    host = npu_host(FOUR_NODES, single_chips({0: "0-15", 1: "0-15", 2: "32-47"}), allowed="32-63")
    plan = topo_affinity.plan(host, Demand(visible=(2,)))
    assert pools_of(plan) == {2: "32-63"}
    assert not [finding for finding in plan.findings if finding.code == "hidden_devices_counted"]


def test_the_affinity_is_cut_to_the_allowance_before_anything_else() -> None:
    host = npu_host(FOUR_NODES, single_chips({0: "0-31"}), allowed="4-15,40-63")
    assert pools_of(topo_affinity.plan(host, Demand())) == {0: "4-15"}


def test_after_the_last_node_comes_the_first() -> None:
    plan = topo_affinity.plan(npu_host(FOUR_NODES, single_chips({0: "48-63"})), Demand())
    assert pools_of(plan) == {0: "0-15,48-63"}
    (worker,) = plan.workers
    assert worker.roles["irq"] == (0, 1) and worker.memory_node == 0


def test_a_cpuset_without_the_next_node_leaves_the_pool_as_it_is() -> None:
    host = npu_host(FOUR_NODES, single_chips({0: "48-63"}), allowed="32-63")
    assert pools_of(topo_affinity.plan(host, Demand())) == {0: "48-63"}


def test_the_node_after_a_single_node_is_that_node() -> None:
    host = npu_host({0: "0-31"}, single_chips({0: "0-15"}))
    assert pools_of(topo_affinity.plan(host, Demand())) == {0: "0-31"}


def test_the_next_node_of_sparse_ids_is_the_next_one_there_is() -> None:
    host = npu_host({0: "0-15", 8: "16-31"}, single_chips({0: "0-15", 1: "16-31"}))
    plan = topo_affinity.plan(host, Demand())
    assert pools_of(plan) == {0: "0-15", 1: "16-31"}  # both extended to 0-31, which they share
    assert [worker.memory_node for worker in plan.workers] == [0, 8]


def test_nodes_without_cpus_are_passed_over() -> None:
    host = npu_host({0: "0-15", 1: "", 2: "16-31"}, single_chips({0: "0-15"}))
    assert pools_of(topo_affinity.plan(host, Demand())) == {0: "0-31"}


def test_offline_cpus_are_no_trouble() -> None:
    host = npu_host({0: "0-4,6-7", 1: "8-15"}, single_chips({0: "0-7"}), allowed="0-15", offline="5")
    assert pools_of(topo_affinity.plan(host, Demand())) == {0: "0-4,6-15"}


def test_an_affinity_of_several_nodes_is_taken_as_it_is_and_in_the_order_reported() -> None:
    plan = topo_affinity.plan(npu_host(FOUR_NODES, single_chips({0: "32-47,0-15", 1: "32-47,0-15"})), Demand())
    assert pools_of(plan) == {0: "32-47", 1: "0-15"}
    assert [worker.memory_node for worker in plan.workers] == [2, 0]


def test_pools_that_are_not_identical_may_overlap_as_documented() -> None:
    chips = single_chips({0: "0-15", 1: "0-15", 2: "16-31", 3: "16-31"})
    pools = pools_of(topo_affinity.plan(npu_host(FOUR_NODES, chips), Demand()))
    assert pools == {0: "0-15", 1: "16-31", 2: "16-31", 3: "32-47"}


def test_npus_of_310p_have_physical_ids_and_two_chips_that_share_a_row() -> None:
    chips = [Chip(32, 0, 0, "0-15"), Chip(32, 1, 1, "0-15"), Chip(32768, 0, 2, "32-47"), Chip(32768, 1, 3, "32-47")]
    plan = topo_affinity.plan(npu_host(FOUR_NODES, chips, style="310P"), Demand())
    assert pools_of(plan) == {0: "0-15", 1: "16-31", 2: "32-47", 3: "48-63"}


def test_logical_ids_that_start_at_four() -> None:
    chips = [Chip(card, 0, card, "16-31") for card in (4, 5)]
    assert pools_of(topo_affinity.plan(npu_host(FOUR_NODES, chips), Demand())) == {4: "16-31", 5: "32-47"}


def test_without_any_affinity_it_falls_back_to_global_slice() -> None:
    plan = topo_affinity.plan(npu_host(FOUR_NODES, single_chips({0: "", 1: ""})), Demand())
    assert plan.strategy == "global-slice"
    assert pools_of(plan) == {0: "0-31", 1: "32-63"}
    assert [(finding.severity, finding.code) for finding in plan.findings] == [("warning", "topo_affinity_missing")]


def test_the_fallback_says_when_the_tool_is_the_cause() -> None:
    commands = {"npu-smi info -t topo": CommandResult("", 3, "failed")}
    plan = topo_affinity.plan(npu_host(FOUR_NODES, single_chips({0: "0-15"}), commands=commands), Demand())
    (fallback,) = plan.findings
    assert fallback.code == "topo_affinity_missing" and "exit code 3" in fallback.message


def test_an_affinity_outside_the_allowance_is_a_conflict() -> None:
    host = npu_host(FOUR_NODES, single_chips({0: "0-15", 1: "48-63"}), allowed="0-31")
    error = refusal(host, Demand(local_rank=1))
    assert error.code == "affinity_conflict"
    assert "0-31" in error.seen and "48-63" in error.seen and "OMP_PROC_BIND" in error.remedy
    assert pools_of(topo_affinity.plan(host, Demand(local_rank=0))) == {0: "0-31"}


def test_a_running_npu_without_a_row_is_a_conflict_when_others_have_one() -> None:
    error = refusal(npu_host(FOUR_NODES, single_chips({0: "0-15", 1: ""})), Demand(local_rank=1))
    assert (error.code, "not reported" in error.seen) == ("affinity_conflict", True)


def test_a_broken_affinity_list_is_refused_not_dropped() -> None:
    topo = "           NPU0       CPU Affinity\nNPU0       X          0-1x5\n"
    host = npu_host(FOUR_NODES, single_chips({0: "0-15"}), commands={"npu-smi info -t topo": topo})
    assert refusal(host, Demand()).code == "topo_row_unparseable"


def test_a_host_without_nodes_is_refused() -> None:
    host = npu_host({}, single_chips({0: "0-15"}), allowed="0-31", online="0-31")
    assert refusal(host, Demand()).code == "no_numa_nodes"


affinities = st.lists(st.sampled_from([*FOUR_NODES.values(), "0-31", "32-63", "4-11", "56-63"]), min_size=1, max_size=6)
allowances = st.sets(st.integers(0, 63), min_size=1).map(format_cpu_list)


@settings(deadline=None, derandomize=True, max_examples=examples(60))
@given(affinity=affinities, allowed=allowances)
def test_pools_lie_within_the_allowance_and_equal_affinities_never_overlap(affinity: list[str], allowed: str) -> None:
    host = npu_host(FOUR_NODES, single_chips(dict(enumerate(affinity))), allowed=allowed)
    try:
        plan = topo_affinity.plan(host, Demand())
    except PlacementError as error:
        assert error.code in ("affinity_conflict", "pool_too_small") and error.remedy
        return
    assert all(set(pool) <= set(parse_cpu_list(allowed)) and len(pool) >= 5 for pool in plan.pools.values())
    for one, other in combinations(plan.pools, 2):
        if affinity[one] == affinity[other]:
            assert not set(plan.pools[one]) & set(plan.pools[other])
    assert topo_affinity.plan(host, Demand()) == plan
    for npu, pool in plan.pools.items():
        assert topo_affinity.plan(host, Demand(visible=(npu,))).pools == {npu: pool}
