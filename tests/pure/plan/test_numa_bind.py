"""numa-bind: vLLM's flags, checked completely before anything starts. Each test names its rule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand, Parallelism
from homenode.host.plan.plan import Plan
from homenode.host.plan.policies.numa_bind import plan
from homenode.host.topology.host import Accelerator, Host
from tests.examples import examples
from tests.placement_hosts import host

GPUS = "2s/2n/8c/smt2/gpu=4"  # node 0: CPUs 0-3,8-11 and GPUs 0, 1; node 1: CPUs 4-7,12-15 and GPUs 2, 3


def gpu(number: int, node: int | None, local_cpus: Iterable[int] = ()) -> Accelerator:
    return Accelerator("cuda", number, "H100", node=node, local_cpus=tuple(local_cpus))


def pools(made: Plan) -> dict[int, str]:
    return {device: format_cpu_list(cpus) for device, cpus in made.pools.items()}


def memory(made: Plan) -> list[tuple[int, ...]]:
    return [worker.memory_nodes for worker in made.workers]


def codes(made: Plan) -> list[str]:
    return [finding.code for finding in made.findings]


def refusal(machine: Host, demand: Demand) -> PlacementError:
    with pytest.raises(PlacementError) as caught:
        plan(machine, demand)
    assert caught.value.remedy and caught.value.seen and caught.value.wanted
    return caught.value


def test_automatic_each_worker_has_the_node_of_its_device() -> None:
    made = plan(host(GPUS), Demand())
    assert pools(made) == {0: "0-3,8-11", 1: "0-3,8-11", 2: "4-7,12-15", 3: "4-7,12-15"}
    assert memory(made) == [(0,), (0,), (1,), (1,)]
    assert [worker.roles for worker in made.workers] == [{"main": worker.cpus} for worker in made.workers]
    assert (made.strategy, made.devices_total, made.findings) == ("numa-bind", 4, ())


def test_lists_are_in_the_order_of_the_visible_devices() -> None:
    made = plan(host(GPUS), Demand(visible=(3, 0), numa_bind_nodes=(1, 0), numa_bind_cpus=("4-5", "!4-15")))
    assert pools(made) == {3: "4-5", 0: "0-3"}
    assert [(worker.local_rank, worker.device) for worker in made.workers] == [(0, 3), (1, 0)]
    assert memory(made) == [(1,), (0,)]


def test_cpu_lists_without_nodes_take_memory_where_the_device_is() -> None:
    made = plan(host(GPUS), Demand(visible=(2, 1), numa_bind_cpus=("0-1", "+0x8-9,all")))
    assert pools(made) == {2: "0-1", 1: "0-15"}
    assert memory(made) == [(1,), (0,)]


def test_nothing_escapes_the_allowance() -> None:
    made = plan(host(f"{GPUS} allowed=2-5,10"), Demand())
    assert pools(made) == {0: "2-3,10", 1: "2-3,10", 2: "4-5", 3: "4-5"}
    assert pools(plan(host(f"{GPUS} allowed=2-5,10"), Demand(visible=(0,), numa_bind_cpus=("!2",)))) == {0: "3-5,10"}


def test_cpus_left_out_of_a_range_are_said() -> None:
    made = plan(host(f"{GPUS} allowed=2-5,10"), Demand(visible=(0,), numa_bind_cpus=("2-10",)))
    assert (pools(made), codes(made)) == ({0: "2-5,10"}, ["cpus_left_out"])


@pytest.mark.parametrize(
    ("machine", "demand", "code", "word"),
    [
        (GPUS, Demand(numa_bind_nodes=(0, 0, 1)), "numa_bind_too_short", "device 3"),
        (GPUS, Demand(numa_bind_cpus=("0",), visible=(3, 1)), "numa_bind_too_short", "device 1"),
        (GPUS, Demand(numa_bind_nodes=(0, 0, 1, 2)), "no_such_node", "node 2"),
        # entries for nobody are checked too
        (GPUS, Demand(visible=(0,), numa_bind_nodes=(0, 7)), "no_such_node", "node 7"),
        (f"{GPUS} mems=0", Demand(numa_bind_nodes=(0, 0, 0, 1)), "nodes_not_allowed", "node 1"),
        (GPUS, Demand(numa_bind_cpus=("0", "1", "2", "3-2")), "bad_cpu_list", "descends"),
        (f"{GPUS} offline=3", Demand(numa_bind_cpus=("0", "1", "2", "3")), "cpus_not_allowed", "offline"),
        (f"{GPUS} allowed=0-3", Demand(numa_bind_cpus=("0", "1", "2", "4")), "cpus_not_allowed", "may not be used"),
        (f"{GPUS} allowed=0-3", Demand(), "affinity_conflict", "node 1"),
        (GPUS, Demand(local_rank=4), "rank_out_of_range", "rank 4"),
        (GPUS, Demand(visible=(0, 1), local_rank=0,
            parallelism=Parallelism(data_parallel_size=2, data_parallel_rank=2)), "bad_parallelism", "rank 2"),
        (GPUS, Demand(parallelism=Parallelism(tensor_parallel_size=0)), "bad_parallelism", "tensor"),
        (GPUS, Demand(parallelism=Parallelism(tensor_parallel_size=4096, pipeline_parallel_size=2)), "bad_parallelism",
            "8192"),
        (GPUS, Demand(visible=(0, 4)), "bad_visible_devices", "4"),
        (GPUS, Demand(visible=()), "bad_visible_devices", "none"),
    ],
)  # fmt: skip
def test_refused_before_anything_starts(machine: str, demand: Demand, code: str, word: str) -> None:
    error = refusal(host(machine), demand)
    assert error.code == code
    assert word in str(error)


def test_one_device_of_unknown_locality_refuses_all_and_is_named() -> None:
    chips = (gpu(0, 0), gpu(1, None), gpu(2, 1))
    for demand in (Demand(), Demand(local_rank=0), Demand(numa_bind_cpus=("0", "1", "2"))):
        error = refusal(host("2s/2n/8c", chips=chips), demand)
        assert (error.code, "device 1" in error.summary, "--numa-bind-nodes" in error.remedy) == (
            "numa_node_unknown",
            True,
            True,
        )
    assert memory(plan(host("2s/2n/8c", chips=chips), Demand(numa_bind_nodes=(0, 0, 1)))) == [(0,), (0,), (1,)]
    # A hidden device does no harm.
    assert memory(plan(host("2s/2n/8c", chips=chips), Demand(visible=(2, 0)))) == [(1,), (0,)]


def test_a_memory_node_without_cpus_is_never_a_devices_node() -> None:
    machine = host("2s/2n/8c/cpuless=2", chips=(gpu(0, 2, range(4, 8)), gpu(1, 3, (99, 0))))
    made = plan(machine, Demand())
    assert pools(made) == {0: "4-7", 1: "0-3"}
    assert memory(made) == [(1,), (0,)]


def test_a_node_without_cpus_by_name_needs_a_cpu_list() -> None:
    machine = host("2s/2n/8c/cpuless=1", chips=(gpu(0, 0),))
    assert refusal(machine, Demand(numa_bind_nodes=(2,))).code == "affinity_conflict"
    assert memory(plan(machine, Demand(numa_bind_nodes=(2,), numa_bind_cpus=("0-1",)))) == [(2,)]


def test_the_only_node_with_cpus_needs_no_locality() -> None:
    made = plan(host("1s/1n/4c", chips=(gpu(0, None),)), Demand())
    assert (pools(made), memory(made)) == ({0: "0-3"}, [(0,)])


def test_a_kernel_without_numa_binds_cpus_and_no_memory() -> None:
    made = plan(host("0n/4c", chips=(gpu(0, None), gpu(1, None))), Demand(numa_bind_nodes=(0, 0)))
    assert (pools(made), memory(made), made.findings) == ({0: "0-3", 1: "0-3"}, [(), ()], ())


def test_a_node_without_memory_takes_the_nearest_and_says_so() -> None:
    machine = host("2s/2n/8c/memoryless=1 mems=0", chips=(gpu(0, 1),))  # the kernel never lists such a node as allowed
    for demand in (Demand(), Demand(numa_bind_nodes=(1,))):
        made = plan(machine, demand)
        assert (pools(made), memory(made), codes(made)) == ({0: "4-7"}, [(0,)], ["memory_node_replaced"])


def test_memory_of_the_devices_node_that_is_not_allowed_is_replaced() -> None:
    made = plan(host(f"{GPUS} mems=0"), Demand(visible=(2,)))
    assert (pools(made), memory(made), codes(made)) == ({2: "4-7,12-15"}, [(0,)], ["memory_node_replaced"])


def test_sparse_node_numbers_are_numbers_not_positions() -> None:
    machine = host("2s/2n/8c/ids=0,8/gpu=2")
    assert memory(plan(machine, Demand())) == [(0,), (8,)]
    assert pools(plan(machine, Demand(numa_bind_nodes=(8, 0)))) == {0: "4-7", 1: "0-3"}


@pytest.mark.parametrize(
    ("sizes", "local_rank", "device"),
    [
        (Parallelism(), 2, 2),
        (Parallelism(data_parallel_size=2, tensor_parallel_size=2, data_parallel_rank=1), 1, 3),
        (Parallelism(data_parallel_size=4, data_parallel_rank=2), 0, 2),
        (Parallelism(data_parallel_size=2, pipeline_parallel_size=2, data_parallel_rank=1), 0, 2),
        (Parallelism(data_parallel_size=2, tensor_parallel_size=2, data_parallel_rank=1, external_launcher=True), 1, 1),
    ],
)
def test_the_index_of_a_rank(sizes: Parallelism, local_rank: int, device: int) -> None:
    made = plan(host(GPUS), Demand(local_rank=local_rank, parallelism=sizes))
    assert [(worker.local_rank, worker.device) for worker in made.workers] == [(local_rank, device)]


def test_a_rank_that_sees_one_device_drives_it_and_finds_its_entry() -> None:
    made = plan(host(GPUS), Demand(visible=(2,), local_rank=2, numa_bind_nodes=(0, 0, 1, 1)))
    assert (made.workers[0].device, memory(made)) == (2, [(1,)])
    assert codes(made) == ["rank_beyond_visible"]
    assert [place.memory_nodes for place in made.processes if place.name == "engine_core_dp0"] == [(1,)]
    assert memory(plan(host(GPUS), Demand(visible=(2,), local_rank=2, numa_bind_nodes=(1,)))) == [(1,)]


def test_only_the_devices_of_the_deployment_need_entries() -> None:
    sizes = Parallelism(tensor_parallel_size=2)
    made = plan(host(GPUS), Demand(parallelism=sizes, numa_bind_nodes=(0, 1)))
    assert (pools(made), made.devices_running) == ({0: "0-3,8-11", 1: "4-7,12-15"}, (0, 1))
    assert refusal(host(GPUS), Demand(parallelism=sizes, numa_bind_nodes=(0,))).code == "numa_bind_too_short"


def test_too_many_entries_and_too_few_devices_are_said() -> None:
    assert codes(plan(host(GPUS), Demand(visible=(0, 1), numa_bind_nodes=(0, 0, 1)))) == ["numa_bind_too_long"]
    assert codes(plan(host(GPUS), Demand(visible=(0, 1), parallelism=Parallelism(tensor_parallel_size=4)))) == [
        "too_few_devices"
    ]


def test_engine_cores_span_the_nodes_of_their_workers_and_the_rest_is_left_alone() -> None:
    sizes = Parallelism(data_parallel_size=2, tensor_parallel_size=2, api_server_count=3)
    made = plan(
        host(f"{GPUS} allowed=0-6"),
        Demand(visible=(0, 2, 3, 1), numa_bind_cpus=("0", "4", "5", "1"), parallelism=sizes),
    )
    cores = {place.name: (format_cpu_list(place.cpus), place.memory_nodes) for place in made.processes}
    # The lists are for workers only; both engines have workers on both nodes, in the order of their ranks.
    assert cores == {
        "engine_core_dp0": ("0-6", (0, 1)),
        "engine_core_dp1": ("0-6", (1, 0)),
        **dict.fromkeys(("api_server_0", "api_server_1", "api_server_2", "dp_coordinator"), ("", ())),
    }
    one = plan(host(GPUS), Demand(visible=(2, 3)))
    assert [(place.name, format_cpu_list(place.cpus)) for place in one.processes] == [
        ("engine_core_dp0", "4-7,12-15"),
        ("api_server_0", ""),
    ]


def test_on_npus_it_is_the_ascend_binding_and_the_lists_are_ignored() -> None:
    machine = host("2s/2n/32c/npu=2:A2/arm")
    made = plan(machine, Demand(before_start=True, numa_bind_nodes=(7, 7), numa_bind_cpus=("9999",)))
    assert made.strategy == "topo-affinity"
    assert codes(made)[-3:] == ["numa_bind_converted", "numa_bind_nodes_ignored", "numa_bind_cpus_ignored"]
    assert codes(plan(machine, Demand(before_start=True)))[-1] == "numa_bind_converted"


@pytest.mark.parametrize("code", ["npu_map_unparseable", "tool_timeout"])
def test_a_tool_that_fails_is_not_taken_for_a_host_without_accelerators(code: str) -> None:
    machine = host("2s/2n/32c")
    broken = PlacementError(code, "no", seen="a", wanted="b", remedy="c")
    assert (
        refusal(replace(machine, accelerators=replace(machine.accelerators, errors=(broken,))), Demand()).code == code
    )


def test_cpu_workers_take_the_nodes_by_their_number() -> None:
    made = plan(host("2s/4n/8c/memoryless=1/allowed=0-1,4-7"), Demand(workers=2))
    # Node 1 has no allowed CPU, node 3 no memory.
    assert (pools(made), memory(made)) == ({0: "0-1", 1: "4-5"}, [(0,), (2,)])
    assert {place.name for place in made.processes} == {"api_server_0"}
    listed = plan(host("2s/2n/8c"), Demand(workers=2, numa_bind_cpus=("6,3-5", "0-1")))
    assert (pools(listed), memory(listed)) == ({0: "3-6", 1: "0-1"}, [(1,), (0,)])
    assert memory(plan(host("2s/2n/8c"), Demand(workers=2, numa_bind_nodes=(1, 0)))) == [(1,), (0,)]
    assert codes(made) == codes(listed) == []
    alone = plan(host("2s/2n/8c"), Demand())
    assert (pools(alone), codes(alone)) == ({0: "0-3", 1: "4-7"}, ["no_accelerators"])
    nothing = host("2s/2n/8c")
    assert (
        refusal(replace(nothing, allowance=replace(nothing.allowance, cpus=())), Demand()).code == "affinity_conflict"
    )


def test_cpu_workers_of_one_node_divide_it() -> None:
    # Three take the two nodes in their order, the larger part for fewer; whole cores with their siblings.
    made = plan(host("2s/2n/8c/smt2"), Demand(workers=3))
    assert (pools(made), memory(made)) == ({0: "0-1,8-9", 1: "2-3,10-11", 2: "4-7,12-15"}, [(0,), (0,), (1,)])
    listed = plan(host("2s/2n/8c"), Demand(workers=4, numa_bind_nodes=(1, 0, 1, 1)))
    assert (pools(listed), memory(listed)) == ({0: "4-5", 1: "0-3", 2: "6", 3: "7"}, [(1,), (0,), (1,), (1,)])
    assert codes(made) == codes(listed) == []
    assert pools(plan(host("0n/4c"), Demand(workers=2))) == {0: "0-1", 1: "2-3"}


def test_more_cpu_workers_than_cores_of_a_node_are_refused_unless_they_may_take_turns() -> None:
    demand = Demand(workers=3, numa_bind_nodes=(0, 0, 0))
    error = refusal(host("2s/2n/4c"), demand)
    assert error.code == "insufficient_cpus" and "node 0" in error.summary and "--numa-bind-nodes" in error.remedy
    assert pools(plan(host("2s/2n/4c"), replace(demand, share_cores=True))) == {0: "0", 1: "0", 2: "1"}


@settings(deadline=None, derandomize=True, max_examples=examples(150))
@given(st.data())
def test_plans_stay_inside_the_allowance_and_survive_json(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 4))
    cpus = 4 * nodes
    allowed = data.draw(st.sets(st.integers(0, cpus - 1), min_size=1))
    machine = host(f"{nodes}s/{nodes}n/{cpus}c/gpu={data.draw(st.integers(1, 6))} allowed={format_cpu_list(allowed)}")
    demand = Demand(
        local_rank=data.draw(st.none() | st.integers(0, 7)),
        numa_bind_nodes=data.draw(st.none() | st.lists(st.integers(0, nodes), max_size=6).map(tuple)),
        numa_bind_cpus=data.draw(
            st.none() | st.lists(st.sampled_from(["all", "0", "!0", "+0", "0-3", "+0-1", "1-"]), max_size=6).map(tuple)
        ),
        parallelism=Parallelism(
            data_parallel_size=data.draw(st.integers(1, 3)), tensor_parallel_size=data.draw(st.integers(1, 3))
        ),
    )
    try:
        made = plan(machine, demand)
    except PlacementError as error:
        assert error.code and error.remedy
        return
    assert all(cpus and set(cpus) <= allowed for cpus in made.pools.values())
    assert all(set(place.cpus) <= allowed for place in made.processes)
    assert all(worker.cpus == made.pools[worker.device] for worker in made.workers)
    assert Plan.from_dict(made.to_dict()) == made
