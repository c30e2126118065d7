"""Where an engine runs: settings and hosts to CPUs and nodes, and the same on the real kernel."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import replace
from pathlib import Path

import pytest

from homenode.engine import pinning
from homenode.engine.binding import EngineBinding
from homenode.engine.config import PlacementConfig
from homenode.engine.memory.available import MemoryBudget, available_memory
from homenode.engine.pinning import apply_binding
from homenode.engine.plan.cpu_contention import interrupted, spin_us, too_many_threads
from homenode.engine.plan.placement import UNPINNED, alone, place_engine, team_groups, too_few_cores
from homenode.errors import PlacementError, UserError
from homenode.host.bind.base.syscalls import MPOL_BIND, MPOL_PREFERRED, Syscalls
from homenode.host.bind.memory.memory_map import MemoryMap, Placement, Policy, Range
from homenode.host.discovery.read import read_host
from homenode.host.plan.numa.demand import Decision
from homenode.host.plan.numa.policy import Teams
from homenode.host.topology.host import Host
from homenode.host.topology.source import RecordedSource
from homenode.numa_policy import NumaPolicy
from homenode.testing.hosts.synthetic import synthetic

TWO_NODES = "1s/2n/8c/smt2"  # node 0: cores 0-3 (siblings 8-11), node 1: cores 4-7 (siblings 12-15)


def host(text: str = TWO_NODES, **variables: str) -> Host:
    return replace(read_host(synthetic(text)), variables=variables)


def binding(
    config: PlacementConfig, text: str = TWO_NODES, threads: int | None = None, **variables: str
) -> EngineBinding:
    return place_engine(config, threads, host(text, **variables))


def test_without_settings_every_core_but_one_and_nothing_is_bound() -> None:
    seen = binding(PlacementConfig())
    assert seen == EngineBinding((0, 1, 2, 3, 4, 5, 6), spare=(7, 15))
    assert alone(seen).others == seen.free_of_compute == (7, 15), (
        "an engine with a process of its own keeps its loop on the core left"
    )


@pytest.mark.parametrize(
    ("text", "threads", "team", "free"),
    [
        ("1s/1n/2c", None, (0, 1), ()),  # two cores: none is kept
        ("1s/1n/1c/smt2", None, (0,), ()),  # a sibling of a compute thread is not free
        ("1s/1n/4c/smt2", None, (0, 1, 2), (3, 7)),
        ("1s/1n/4c/smt2", 2, (0, 1), (2, 3, 6, 7)),
        ("1s/1n/4c/smt2", 5, (0, 1, 2, 3, 4), ()),  # siblings because they were asked for
    ],
)
def test_siblings_are_used_only_when_asked_for_and_the_rest_is_for_the_loop_and_the_front(
    text: str, threads: int | None, team: tuple[int, ...], free: tuple[int, ...]
) -> None:
    seen = binding(PlacementConfig(), text, threads)
    assert (seen.team, seen.free_of_compute) == (team, free)


def test_numa_bind_keeps_threads_and_memory_on_one_node() -> None:
    seen = binding(PlacementConfig(numa_bind=True))
    assert (seen.team, seen.memory_nodes) == ((0, 1, 2), (0,))
    assert seen.others == (3, 11), "the loop stays on the node as well, on the core without a compute thread"


def test_numa_bind_nodes_names_the_node() -> None:
    seen = binding(PlacementConfig(numa_bind=True, numa_bind_nodes=(1,)))
    assert (seen.team, seen.memory_nodes) == ((4, 5, 6), (1,))


def test_numa_bind_cpus_narrow_the_node() -> None:
    seen = binding(PlacementConfig(numa_bind=True, numa_bind_nodes=(1,), numa_bind_cpus=("12-13",)))
    assert (seen.team, seen.memory_nodes) == ((12, 13), (1,)), "siblings count as cores when only they are given"


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (PlacementConfig(numa_bind_nodes=(1,)), "--numa-bind"),
        (PlacementConfig(numa_bind=True, cpu_threads_bind="auto"), "--cpu-threads-bind"),
        (PlacementConfig(numa_bind=True, numa_bind_nodes=(5,)), "5"),
        (PlacementConfig(numa_bind=True, numa_bind_cpus=("0-99",)), "99"),
        (PlacementConfig(cpu_threads_bind="0-3|4-7"), "2"),
        (PlacementConfig(cpu_threads_bind="0-99"), "99"),
        (PlacementConfig(memory_nodes="7"), "7"),
        (PlacementConfig(memory_nodes="x"), "x"),
        (PlacementConfig(reserve_cpus=8), "--reserve-cpus 8"),
    ],
)
def test_what_cannot_be_is_refused_by_name(config: PlacementConfig, word: str) -> None:
    with pytest.raises(UserError) as caught:
        binding(config)
    assert word in caught.value.message


def test_threads_beyond_the_list_are_refused() -> None:
    with pytest.raises(UserError, match="--threads 3: the list of this worker has 2 CPUs"):
        binding(PlacementConfig(cpu_threads_bind="4,5"), threads=3)


def test_a_list_is_taken_as_written() -> None:
    seen = binding(PlacementConfig(cpu_threads_bind="5,4"))
    assert (seen.team, seen.memory_nodes) == ((5, 4), (1,))


def test_auto_takes_one_memory_node_and_keeps_a_core() -> None:
    seen = binding(PlacementConfig(cpu_threads_bind="auto", memory_nodes="1"))
    assert seen.memory_nodes == (1,)
    assert len(seen.team) == 3, "four cores, one of them kept"
    assert {cpu % 8 for cpu in seen.team} < {4, 5, 6, 7}


def test_nobind_leaves_every_thread_where_the_kernel_puts_it() -> None:
    assert binding(PlacementConfig(cpu_threads_bind="nobind"), threads=3).team == (UNPINNED,) * 3


def test_the_fields_variable_is_read_and_ours_wins() -> None:
    assert binding(PlacementConfig(), VLLM_CPU_OMP_THREADS_BIND="4-5").team == (4, 5)
    assert binding(PlacementConfig(), VLLM_CPU_OMP_THREADS_BIND="4-5", HOMENODE_CPU_THREADS_BIND="6-7").team == (6, 7)
    assert binding(PlacementConfig(cpu_threads_bind="0-1"), HOMENODE_CPU_THREADS_BIND="6-7").team == (0, 1)


def test_a_reserve_is_whole_cores_for_everything_but_computing() -> None:
    seen = binding(PlacementConfig(reserve_cpus=2))
    assert (seen.team, seen.others) == ((0, 1, 2, 3, 4, 5), (6, 7, 14, 15))


def test_too_few_cores_is_said() -> None:
    assert too_few_cores(host("1s/1n/2c"), EngineBinding((0,))) == ()
    (finding,) = too_few_cores(host("1s/1n/1c"), EngineBinding((0,)))
    assert (finding.severity, finding.code) == ("warning", "too_few_cores")


@pytest.mark.parametrize("policy", ["shard", "mirror", "interleave"])
def test_a_policy_over_nodes_has_their_threads_node_after_node(policy: str) -> None:
    seen = binding(PlacementConfig(numa=policy))
    assert (seen.team, seen.spare, seen.memory_nodes) == ((0, 1, 2, 3, 4, 5, 6), (7, 15), ())
    assert (seen.numa, seen.thread_memory) == (policy, (0,) * 4 + (1,) * 3)
    assert team_groups(host(), seen.team) == tuple((node, 0 if node == 0 else 4) for node in seen.thread_memory)


def test_threads_keep_to_the_nodes_that_are_named_and_so_does_memory() -> None:
    seen = binding(PlacementConfig(numa="shard", numa_nodes="3,1"), "2s/4n/16c")
    assert (seen.team, seen.thread_memory) == ((12, 13, 14, 15, 4, 5, 6, 7), (3,) * 4 + (1,) * 4)
    assert seen.memory_nodes == (3, 1), "there are nodes it could come from otherwise"
    assert seen.free_of_compute == (0, 1, 2, 3, 8, 9, 10, 11)


def test_local_computes_on_one_node_with_the_memory_of_that() -> None:
    seen = binding(PlacementConfig(numa="local"))
    assert (seen.team, seen.memory_nodes, seen.numa) == ((0, 1, 2, 3), (0,), "local")
    assert binding(PlacementConfig(numa="local", numa_nodes="1,0")).team == (4, 5, 6, 7)


def test_a_replica_is_the_engine_of_one_node_and_says_so() -> None:
    seen = binding(PlacementConfig(numa="replicate"))
    assert (seen.team, seen.memory_nodes, seen.numa) == ((0, 1, 2, 3), (0,), "replicate")
    assert [finding.code for finding in seen.findings] == ["numa_one_replica"]


def test_what_the_core_needs_to_know_goes_with_the_place() -> None:
    seen = binding(PlacementConfig(numa="shard", numa_mirror_tensors=("lm_head*",), numa_strict=True))
    assert (seen.mirror_tensors, seen.strict) == (("lm_head*",), True)
    assert binding(PlacementConfig()).thread_memory == (), "nothing is asked of it without a policy"


def test_auto_is_settled_by_what_is_asked_and_only_where_there_is_a_choice() -> None:
    def choose(teams: Teams) -> Decision:
        return Decision("mirror", f"{len(teams)} nodes")

    seen = place_engine(PlacementConfig(numa="auto", numa_mirror_tensors=("lm_head*",)), None, host(), choose)
    assert (seen.numa, seen.numa_why, seen.mirror_tensors) == ("mirror", "2 nodes", ())
    assert binding(PlacementConfig(numa="auto")).numa == "shard", "nothing is known of a model"

    def never(teams: Teams) -> Decision:
        raise AssertionError("there is one node")

    assert place_engine(PlacementConfig(numa="auto"), None, host("1s/1n/4c"), never).numa == "local"


@pytest.mark.parametrize("policy", NumaPolicy)
def test_on_one_node_every_policy_is_what_it_would_be_without(policy: str) -> None:
    without, seen = binding(PlacementConfig(), "1s/1n/4c/smt2"), binding(PlacementConfig(numa=policy), "1s/1n/4c/smt2")
    assert (seen.team, seen.spare, seen.memory_nodes) == (without.team, without.spare, without.memory_nodes)
    assert (seen.numa, seen.thread_memory) == ("local", (0, 0, 0))
    (finding,) = seen.findings
    assert (finding.code, finding.severity) == (
        "numa_single_node",
        "info" if policy in ("auto", "local") else "warning",
    )
    assert binding(PlacementConfig(numa=policy), "1s/0n/4c").thread_memory == (), (
        "a host without nodes has none to name"
    )


def test_both_threads_of_each_core_when_asked_with_and_without_a_policy() -> None:
    assert binding(PlacementConfig(threads_per_core=2), "1s/1n/4c/smt2") == EngineBinding(
        (0, 4, 1, 5, 2, 6), spare=(3, 7)
    )
    assert binding(PlacementConfig(threads_per_core=2, numa="shard")).team == (
        0,
        8,
        1,
        9,
        2,
        10,
        3,
        11,
        4,
        12,
        5,
        13,
        6,
        14,
    )
    assert [f.code for f in binding(PlacementConfig(threads_per_core=2), "1s/1n/4c").findings] == [
        "one_thread_per_core"
    ]


def test_a_reserve_is_taken_from_all_nodes() -> None:
    seen = binding(PlacementConfig(numa="shard", reserve_cpus=2))
    assert (seen.team, seen.spare) == ((0, 1, 2, 4, 5, 6), (3, 7, 11, 15))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (PlacementConfig(numa="shard", numa_bind=True), "--numa and --numa-bind"),
        (PlacementConfig(numa="shard", cpu_threads_bind="0-3"), "--numa and --cpu-threads-bind"),
        (PlacementConfig(numa="shard", memory_nodes="0"), "--numa and --memory-nodes"),
        (PlacementConfig(threads_per_core=2, cpu_threads_bind="0-3"), "--threads-per-core and --cpu-threads-bind"),
        (PlacementConfig(numa_nodes="0"), "--numa-nodes says how --numa is meant"),
        (PlacementConfig(numa_mirror_tensors=("x",)), "--numa-mirror-tensors says"),
        (PlacementConfig(numa_strict=True), "--numa-strict says"),
        (PlacementConfig(numa_measured="x"), "--numa-measured says"),
        (PlacementConfig(numa="shard", numa_nodes="0,9"), "no NUMA node 9"),
        (PlacementConfig(numa="mirror", numa_mirror_tensors=("x",)), "--numa mirror"),
    ],
)
def test_settings_that_contradict_each_other_are_named(config: PlacementConfig, words: str) -> None:
    with pytest.raises(UserError) as caught:
        binding(config)
    assert words in caught.value.message


@pytest.mark.parametrize("policy", ["shard", "mirror", "interleave", "replicate"])
def test_strict_refuses_one_node_for_a_policy_of_several(policy: str) -> None:
    with pytest.raises(PlacementError, match="two NUMA nodes"):
        binding(PlacementConfig(numa=policy, numa_strict=True), "1s/1n/4c")


def test_a_placement_error_is_a_users_error() -> None:
    assert issubclass(PlacementError, UserError), "so that the command line ends with exit code 2"


def test_settling_binds_this_process_and_its_threads() -> None:
    """In a child, as a memory policy of its own cannot be taken off the test process."""
    import subprocess
    import sys

    code = (
        "import os, pathlib, threading\n"
        "from homenode.engine.plan.placement import EngineBinding\n"
        "from homenode.engine.pinning import apply_binding\n"
        "hold = threading.Event()\n"
        "threading.Thread(target=hold.wait, daemon=True).start()\n"
        "cpu = max(os.sched_getaffinity(0))\n"
        "assert apply_binding(EngineBinding((cpu,), (cpu,), (0,))) == ()\n"
        "for task in pathlib.Path('/proc/self/task').iterdir():\n"
        "    assert os.sched_getaffinity(int(task.name)) == {cpu}, task\n"
        "print([line.split()[1] for line in open('/proc/self/numa_maps')][0])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "bind:0"


def test_a_refused_policy_becomes_a_finding() -> None:
    class Refusing(Syscalls):
        def set_mempolicy(self, mode: int, nodes: object = ()) -> None:
            raise PermissionError(1, "set_mempolicy")

    findings = apply_binding(EngineBinding((0,), (), (0,)), Refusing())
    assert {finding.code for finding in findings} == {"memory_policy_refused"}
    assert "bind" not in Path("/proc/self/numa_maps").read_text().split("\n")[0]


def test_memory_for_which_there_is_no_time_becomes_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(Syscalls):
        """A kernel by which every page of this process, which is bound to node 0, lies on node 1."""

        def set_mempolicy(self, mode: int, nodes: object = ()) -> None:
            pass

        def get_mempolicy(self) -> tuple[int, tuple[int, ...]]:
            return MPOL_BIND, (0,)

        def move_pages(self, pid: int, addresses: Sized, nodes: object, flags: int = 2) -> tuple[int, ...]:
            return (1 if nodes is None else 0,) * len(addresses)

    page, default = 4096, Policy("default")
    heap = Range(page, 5 * page, "private", Placement(default, {1: 4}, page))
    monkeypatch.setattr(pinning, "read_memory_map", lambda pid: MemoryMap((heap,), default))
    assert apply_binding(EngineBinding((0,), (), (0,)), Elsewhere()) == ()
    monkeypatch.setattr(pinning, "_BRING_ALONG_S", -1.0)
    (finding,) = apply_binding(EngineBinding((0,), (), (0,)), Elsewhere())
    assert (finding.severity, finding.code) == ("warning", "memory_left_behind")
    assert finding.text.startswith("0B of 16KiB"), finding.text


class WithPolicy(Syscalls):
    """A kernel where this process has a memory policy already."""

    def __init__(self, mode: int, *nodes: int) -> None:
        super().__init__()
        self.policy = mode, nodes

    def get_mempolicy(self) -> tuple[int, tuple[int, ...]]:
        return self.policy


@pytest.mark.parametrize(
    ("binding", "kernel", "room"),
    [
        (EngineBinding((0,)), WithPolicy(0), MemoryBudget(1000 << 10)),
        (
            EngineBinding((0,)),
            WithPolicy(MPOL_PREFERRED, 1),
            MemoryBudget(1000 << 10),
        ),  # takes from other nodes when that is full
        (EngineBinding((0,)), WithPolicy(MPOL_BIND, 1), MemoryBudget(250 << 10, (1,))),
        (EngineBinding((0,), (), (0,)), WithPolicy(0), MemoryBudget(750 << 10, (0,))),
        (EngineBinding((0,), (), (0, 1)), WithPolicy(0), MemoryBudget(1000 << 10, (0, 1))),
    ],
    ids=["unbound", "preferred", "bound from outside", "bound by its place", "bound to all"],
)
def test_memory_of_other_nodes_is_no_room_for_an_engine_that_is_bound(
    binding: EngineBinding, kernel: Syscalls, room: MemoryBudget
) -> None:
    nodes = {
        f"/sys/devices/system/node/node{node}/meminfo": f"Node {node} MemFree: {free} kB"
        for node, free in ((0, 900), (1, 300))
    }
    machine = RecordedSource(
        "x86_64", {"/sys/devices/system/node/online": "0-1", "/proc/meminfo": "MemAvailable: 1000 kB", **nodes}
    )
    assert available_memory(binding, kernel, machine) == room


def test_too_little_memory_on_the_nodes_is_said_with_their_numbers(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from homenode.cli.main import main
    from homenode.engine.plan import inline

    monkeypatch.setattr(inline, "budget_on", lambda host, binding, policy, share: MemoryBudget(64 << 20, (3,)))
    with pytest.raises(SystemExit) as end:
        main(["serve", "--check-config", "--backend", "reference", "--kv-cache-memory", "1GiB"])
    assert end.value.code == 2
    assert "memory is bound to NUMA node 3, where 64MiB can be had" in " ".join(capsys.readouterr().err.split())


def test_threads_are_grouped_by_node_and_last_level_cache() -> None:
    on = host("2s/2n/8c/l3=2")
    assert team_groups(on, (0, 1, 2, 4, 7)) == ((0, 0), (0, 0), (0, 2), (1, 4), (1, 6))
    assert team_groups(host("1s/0n/4c/l3=0"), (0, 3)) == ((0, -1), (0, -1)), "what is not known is one"
    assert team_groups(on, (UNPINNED, UNPINNED)) == ((), ())


@pytest.mark.parametrize(
    ("text", "threads", "words"),
    [
        ("1s/1n/8c", 8, None),
        ("1s/1n/8c/quota=8", 8, None),
        ("1s/1n/8c/quota=2.5", 2, None),
        ("1s/1n/8c/quota=2.5", 3, "3 compute threads share a CPU quota worth 2.5 CPUs"),
        ("1s/1n/8c/allowed=0-3", 5, "5 compute threads share 4 CPUs"),
    ],
)
def test_more_threads_than_cpus_or_cpu_time_are_said(text: str, threads: int, words: str | None) -> None:
    binding = EngineBinding((UNPINNED,) * threads)
    found = too_many_threads(host(text), binding)
    assert [(f.severity, f.code) for f in found] == ([("warning", "too_many_threads")] if words else [])
    assert spin_us(100, host(text), binding) == (2 if words else 100), "who waits leaves the CPU to those it waits for"
    if words:
        remedy = 2 if "quota" in words else 4
        assert words in found[0].message and f"--threads {remedy}" in found[0].remedy


def test_interrupted_threads_are_a_warning_with_a_remedy() -> None:
    assert interrupted({"backend": "reference"}) is None and interrupted({"lost_cpu_shares": [0.0, 0.09]}) is None
    found = interrupted({"lost_cpu_shares": [0.02, 0.31, 0.1]})
    assert found is not None and (found.severity, found.code) == ("warning", "threads_interrupted")
    assert (
        found.message.startswith("2 of 3 compute threads were interrupted: up to 31% ") and "--threads" in found.remedy
    )
