"""The Ascend 950: one cluster of eight cores inside the node of the affinity, no roles, no interrupts, polling threads
of the driver on node 0.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.errors import PlacementError
from homenode.host.bind.base.target import target_of
from homenode.host.discovery.read import read_host
from homenode.host.plan.demand import Demand
from homenode.host.plan.plan import Plan
from homenode.host.plan.policies import ascend
from homenode.host.plan.select import make_plan
from homenode.host.topology.host import Host
from homenode.testing.hosts.synthetic import synthetic
from tests.examples import examples
from tests.npu_hosts import npu_host, single_chips
from tests.pools import pools_of

NODES = {0: "0-31", 1: "32-63", 2: "64-95", 3: "96-127"}


def host_950(affinity: dict[int, str], allowed: str | None = None, busy: list[int] | None = None) -> Host:
    return npu_host(NODES, single_chips(affinity, busy), style="950", allowed=allowed)


def plan_of(line: str, **demand: object) -> Plan:
    return make_plan("ascend", read_host(synthetic(line)), Demand(before_start=True, **demand))  # type: ignore[arg-type]


def test_npus_of_a_node_have_its_clusters_in_the_order_of_their_numbers() -> None:
    plan = ascend.plan(host_950({0: "32-63", 1: "64-95", 2: "32-63", 3: "0-31"}), Demand())
    assert plan.strategy == "topo-affinity"
    assert pools_of(plan) == {0: "32-39", 1: "64-71", 2: "40-47", 3: "0-7"}
    assert [worker.memory_nodes for worker in plan.workers] == [(1,), (2,), (1,), (0,)]


@pytest.mark.parametrize(("line", "size"), [("2s/4n/256c/npu=8:950/arm", 8), ("2s/4n/256c/smt2/npu=8:950/arm", 16)])
def test_a_cluster_is_eight_whole_cores_inside_the_npus_own_node(line: str, size: int) -> None:
    host = read_host(synthetic(line))
    plan = plan_of(line)
    chips = {chip.id: chip for chip in host.accelerators.chips}
    for worker in plan.workers:
        cores = {host.cpu_by_id[cpu].core for cpu in worker.cpus}
        assert len(worker.cpus) == size and len(cores) == 8
        assert {cpu for core in cores for cpu in host.cores[core]} == set(worker.cpus)
        assert {host.cpu_by_id[cpu].node for cpu in worker.cpus} == {chips[worker.device].node}
    assert "smt_siblings_split" not in {finding.code for finding in plan.findings}


def test_there_are_no_roles_and_no_interrupts() -> None:
    host = host_950({0: "32-63"})
    (worker,) = ascend.plan(host, Demand()).workers
    assert worker.roles == {"main": worker.cpus}
    target = target_of(worker, host.accelerators.chips[0])
    assert (target.cpus, target.threads, target.irqs) == (worker.cpus, {}, ())


def test_the_log_line_names_the_worker_alone() -> None:
    plan = ascend.plan(host_950({0: "32-63", 1: "32-63"}), Demand(visible=(1,)))
    assert ascend.log_lines(plan, plan.strategy, 0, (1,))[-1] == f"Ascend 950 NPU1: worker={list(range(40, 48))}"


@pytest.mark.parametrize(
    ("affinity", "allowed", "polling"),
    [
        ({0: "32-63"}, None, "1-31"),  # all of node 0, but for the CPU of the kernel's timers
        ({0: "0-31", 1: "0-31"}, None, "16-31"),  # what clusters of node 0 leave
        (dict.fromkeys(range(4), "0-31"), None, "1-31"),  # which leave nothing
        ({0: "32-63"}, "0-7,32-63", "1-7"),
    ],
)
def test_the_polling_threads_stay_on_node_0(affinity: dict[int, str], allowed: str | None, polling: str) -> None:
    plan = ascend.plan(host_950(affinity, allowed), Demand())
    assert {name: format_cpu_list(cpus) for name, cpus in plan.kernel_threads.items()} == {
        "uvb_poll_window_thread": polling
    }
    assert Plan.from_dict(plan.to_dict()).kernel_threads == plan.kernel_threads


def test_without_a_cpu_of_node_0_nothing_is_said_of_the_polling_threads() -> None:
    assert ascend.plan(host_950({0: "32-63"}, "32-63"), Demand()).kernel_threads == {}


def test_hidden_npus_keep_their_clusters() -> None:
    affinity = {0: "32-63", 1: "32-63", 2: "32-63"}
    alone = [ascend.plan(host_950(affinity), Demand(visible=(npu,))) for npu in affinity]
    assert [pools_of(plan)[npu] for npu, plan in enumerate(alone)] == ["32-39", "40-47", "48-55"]
    assert "hidden_devices_counted" in {finding.code for finding in alone[0].findings}


def test_more_npus_than_clusters_fail_the_ranks_that_have_none() -> None:
    host = host_950(dict.fromkeys(range(3), "32-63"), "32-48")
    plan = ascend.plan(host, Demand())
    assert pools_of(plan) == {0: "32-39", 1: "40-47"}
    with pytest.raises(PlacementError) as caught:
        ascend.plan(host, Demand(local_rank=2))
    assert caught.value.code == "insufficient_cpus" and "2 clusters" in caught.value.seen


@pytest.mark.parametrize(("cpus", "code"), [("0-63", "affinity_conflict"), ("", "affinity_conflict")])
def test_an_affinity_that_is_not_that_of_one_node_fails_its_rank_only(cpus: str, code: str) -> None:
    host = host_950({0: cpus, 1: "64-95"})
    assert pools_of(ascend.plan(host, Demand())) == {1: "64-71"}
    with pytest.raises(PlacementError) as caught:
        ascend.plan(host, Demand(local_rank=0))
    assert caught.value.code == code and caught.value.remedy


def test_processors_with_four_threads_a_core_are_not_known() -> None:
    with pytest.raises(PlacementError) as caught:
        plan_of("2s/2n/32c/smt4/npu=2:950/arm")
    assert caught.value.code == "clusters_unknown" and "4 threads" in caught.value.seen


@pytest.mark.parametrize("family", ["A2", "A3", "310P"])
def test_other_families_keep_their_roles(family: str) -> None:
    plan = plan_of(f"2s/4n/256c/npu=8:{family}/arm")
    assert all(set(worker.roles) == {"irq", "main", "acl", "release"} for worker in plan.workers)
    assert plan.kernel_threads == {}


affinities = st.lists(st.sampled_from([*NODES.values(), "4-11", "0-63", ""]), min_size=1, max_size=8)


@settings(deadline=None, derandomize=True, max_examples=examples(80))
@given(affinity=affinities, allowed=st.sets(st.integers(0, 127), min_size=1).map(format_cpu_list))
def test_clusters_are_disjoint_inside_one_node_and_the_same_for_every_process(
    affinity: list[str], allowed: str
) -> None:
    host = host_950(dict(enumerate(affinity)), allowed)
    try:
        plan = ascend.plan(host, Demand())
    except PlacementError as error:
        assert error.code in ("affinity_conflict", "insufficient_cpus") and error.remedy
        return
    used = [cpu for pool in plan.pools.values() for cpu in pool]
    assert len(used) == len(set(used)) and set(used) <= set(parse_cpu_list(allowed))
    for device, pool in plan.pools.items():
        assert len(pool) == 8 and len({host.cpu_by_id[cpu].node for cpu in pool}) == 1
        assert ascend.plan(host, Demand(visible=(device,))).pools == {device: pool}
