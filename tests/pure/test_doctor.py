"""What `doctor` says of hosts with one thing wrong with them, and that it says nothing of the kind where nothing is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.errors import PlacementError
from homenode.host.bind.cpu_load import CpuLoad
from homenode.host.discovery.read import read_host
from homenode.host.doctor.doctor import doctor
from homenode.host.doctor.live_facts import CAP_SYS_NICE, LiveFacts, ProcessFacts
from homenode.host.plan.demand import Demand
from homenode.host.plan.select import make_plan
from homenode.host.topology.describe import fingerprint
from homenode.host.topology.finding import SEVERITIES, Finding
from homenode.host.topology.host import Host, Interrupt, PciDevice
from homenode.testing.hosts.synthetic import synthetic
from tests.examples import examples
from tests.host_values import Shape, host_of

TWO = [Shape(0, 4, smt=2), Shape(1, 4, smt=2, socket=1)]


def good(**more: Any) -> Host:
    """Two nodes, two NPUs, everything allowed and nothing wrong."""
    return host_of(TWO, {0: [0], 1: [1]}, **more)


def codes(found: list[Finding]) -> dict[str, str]:
    return {finding.code: finding.severity for finding in found}


def with_allowance(host: Host, **facts: Any) -> Host:
    return replace(host, allowance=replace(host.allowance, **facts))


def with_chip(host: Host, **facts: Any) -> Host:
    chips = host.accelerators.chips
    return replace(host, accelerators=replace(host.accelerators, chips=(replace(chips[0], **facts), *chips[1:])))


def with_node(host: Host, at: int, **facts: Any) -> Host:
    return replace(host, nodes=tuple(replace(node, **facts) if node.id == at else node for node in host.nodes))


def with_function(kind: int, host: Host | None = None, address: str = "0000:81:00.0") -> Host:
    return replace(host or good(), devices=(PciDevice(address, 0x8086, 1, kind, None, (), ()),))


def sparse_cuda() -> Host:
    return host_of([Shape(0, 4), Shape(1, 4)], {0: [0]}, kind="cuda", offline=[1, 2])


def bound_by_slurm(host: Host) -> Host:
    return replace(host, variables={"SLURM_CPU_BIND": "quiet,mask_cpu:0x8", "SLURM_LOCALID": "0"})


MACHINES: list[tuple[str, str, Callable[[], Host]]] = [
    ("warning", "mask_by_accident", lambda: with_allowance(good(allowed="0"), mask_origin="openmp")),
    ("info", "mask_inherited", lambda: with_allowance(good(allowed="0-3"), mask_origin="inherited")),
    ("warning", "mask_of_one_core", lambda: with_allowance(good(allowed="3"), mask_origin="inherited")),
    ("warning", "mask_of_one_core", lambda: with_allowance(good(allowed="2-3"), mask_origin="inherited")),
    ("info", "mask_inherited", lambda: bound_by_slurm(with_allowance(good(allowed="3"), mask_origin="inherited"))),
    (
        "info",
        "mask_inherited",  # the cpuset has no other core
        lambda: with_allowance(good(allowed="2"), mask_origin="inherited", cpuset=(2, 3)),
    ),
    ("info", "cpuset_narrow", lambda: with_allowance(good(allowed="0-3"), mask_origin="cpuset", cpuset=(0, 1, 2, 3))),
    ("warning", "cores_in_part", lambda: good(allowed="0-6")),
    ("warning", "quota_below_cpus", lambda: good(quota=3.5)),
    ("info", "cpus_offline", lambda: good(offline=[15])),
    ("info", "isolated_unused", lambda: good(allowed="0-7", isolated=range(8, 16))),
    ("warning", "isolated_cpus", lambda: good(isolated=[2])),
    ("info", "cores_unequal", lambda: host_of([Shape(0, 8, capacities=(1024, 512))])),
    ("info", "numa_balancing_on", lambda: good(numa_balancing=True)),
    ("warning", "huge_pages_off", lambda: replace(good(), transparent_huge_pages="never")),
    ("info", "huge_pages_always", lambda: replace(good(), transparent_huge_pages="always")),
    ("info", "huge_pages_none_reserved", lambda: with_node(good(), 0, huge_pages={2 << 20: 0})),
    ("info", "memory_limited", lambda: with_allowance(good(), memory_limit=1 << 30)),
    ("warning", "nodes_without_memory", lambda: with_node(good(), 1, memory=0)),
    ("info", "nodes_without_cpus", lambda: host_of([*TWO, Shape(2, 0)])),
    ("warning", "memory_node_shut", lambda: good(mems=[0])),
    ("info", "memory_of_one_node", lambda: good(allowed="0-7", mems=[0])),
    ("info", "distances_asymmetric", lambda: with_node(good(), 1, distances={0: 31, 1: 10})),
    (
        "warning",
        "accelerators_without_node",
        lambda: with_function(0x120000, with_chip(good(), node=None), "0000:00:00.0"),
    ),
    ("info", "devices_without_node", lambda: with_function(0x020000)),
    ("info", "devices_without_node", lambda: with_function(0x010802)),
    ("warning", "openmp_binds", lambda: replace(good(), variables={"OMP_PROC_BIND": "close"})),
    ("warning", "openmp_binds", lambda: replace(good(), variables={"GOMP_CPU_AFFINITY": "0-3"})),
    ("info", "slurm_binds", lambda: replace(good(), variables={"SLURM_CPU_BIND": "quiet,mask_cpu:0xf"})),
    ("warning", "cpus_beyond_1023", lambda: host_of([Shape(0, 1025)])),
    ("info", "beyond_llama_numa", lambda: host_of([Shape(0, 513)])),
    ("info", "beyond_llama_numa", lambda: host_of([Shape(node, 1) for node in range(9)])),
    ("warning", "cpu_ids_sparse", sparse_cuda),
    ("info", "node_ids_sparse", lambda: host_of([Shape(0, 2), Shape(8, 2)])),
    ("info", "accelerator_memory_nodes", lambda: with_chip(host_of([*TWO, Shape(2, 0)], {0: [0]}), memory_node=2)),
]


@pytest.mark.parametrize(("severity", "code", "host"), MACHINES)
def test_one_thing_wrong_is_found_with_its_remedy(severity: str, code: str, host: Callable[[], Host]) -> None:
    found = doctor(host())
    assert codes(found).get(code) == severity
    assert all(finding.remedy for finding in found if finding.severity != "info")
    assert code not in codes(doctor(good()))


LIVING: list[tuple[str, str, LiveFacts]] = [
    ("warning", "memory_policy_refused", LiveFacts(memory_policy_refusal="EPERM")),
    ("warning", "memory_policy_refused", LiveFacts(memory_policy_refusal="ENOSYS")),
    ("info", "capability_missing", LiveFacts(capabilities=(1 << 41) - 1 - (1 << CAP_SYS_NICE))),
    ("warning", "irqs_not_writable", LiveFacts(irqs_writable=False)),
    ("info", "irqbalance_running", LiveFacts(irqbalance=812)),
    ("warning", "swap_used", LiveFacts(swap=1 << 30, swap_used=1 << 20)),
    ("info", "swap_on", LiveFacts(swap=1 << 30)),
    ("warning", "machine_busy", LiveFacts(load=CpuLoad(0.4, 0.0, 2, load_average=3.5))),
    ("warning", "machine_busy", LiveFacts(load=CpuLoad(0.1, 0.0, 2, waiting=0.5))),
    ("warning", "cpu_time_stolen", LiveFacts(load=CpuLoad(0.1, 0.05, 2))),
    ("warning", "swapped_out", LiveFacts(process=ProcessFacts(9, "vllm", 4, 1 << 20))),
]


@pytest.mark.parametrize(("severity", "code", "live"), LIVING)
def test_what_the_living_system_lacks_is_found(severity: str, code: str, live: LiveFacts) -> None:
    assert codes(doctor(good(), live=live)).get(code) == severity
    assert list(codes(doctor(good(), live=LiveFacts()))) == ["nothing_wrong"]
    idle = LiveFacts(load=CpuLoad(0.05, 0.0, 2, load_average=9.0, waiting=0.01))
    assert list(codes(doctor(good(), live=idle))) == ["nothing_wrong"], "a load average is of a minute ago"


def test_threads_are_held_against_the_quota_and_the_mask() -> None:
    live = LiveFacts(process=ProcessFacts(9, "vllm", 64, 0))
    assert "quota_below_threads" in codes(doctor(good(quota=8), live=live))
    assert "quota_below_threads" not in codes(doctor(good(quota=64), live=live))
    (finding,) = [finding for finding in doctor(good(allowed="3"), live=live) if finding.code == "threads_on_one_cpu"]
    assert "all 64 threads of process 9 (vllm) share CPU 3 of 16" in finding.message


def test_where_nothing_is_wrong_it_says_what_it_looked_at() -> None:
    (finding,) = doctor(good(), live=LiveFacts(capabilities=(1 << 41) - 1, irqs_writable=True))
    assert (finding.severity, finding.code) == ("info", "nothing_wrong")
    assert "16 CPUs, 2 NUMA nodes, 0 PCI functions, 2 accelerators" in finding.message


@pytest.mark.parametrize(
    "variables",
    [
        {"OMP_PROC_BIND": "false"},
        {"OMP_PROC_BIND": "FALSE", "OMP_PLACES": "cores"},
        {"KMP_AFFINITY": "disabled"},
        {"SLURM_CPU_BIND": "none"},
        {"OMP_PLACES": ""},
    ],
)
def test_variables_that_bind_nothing_are_no_finding(variables: dict[str, str]) -> None:
    assert list(codes(doctor(replace(good(), variables=variables)))) == ["nothing_wrong"]


def test_an_accelerator_that_is_near_all_nodes_alike_is_no_fault_of_the_firmware() -> None:
    assert "accelerators_without_node" not in codes(doctor(with_chip(good(), node=None, address=None)))


def test_memory_of_an_accelerator_is_not_taken_for_slow_memory() -> None:
    host = with_chip(host_of([*TWO, Shape(2, 0)], {0: [0]}), memory_node=2)
    assert "nodes_without_cpus" not in codes(doctor(host))


def test_what_the_plan_says_comes_first_and_is_not_said_twice() -> None:
    host = good(numa_balancing=True, isolated=[2])
    plan = make_plan("fair", host, Demand(before_start=True))
    found = doctor(host, plan)
    assert codes(found)["isolated_cpus"] == "warning"
    assert [finding.code for finding in found].count("isolated_cpus") == 1
    assert [finding.code for finding in found].count("numa_balancing_on") == 1


def test_a_plan_of_another_host_is_an_error() -> None:
    host = good()
    plan = make_plan("fair", host, Demand(before_start=True))
    assert codes(doctor(host, replace(plan, host="0123456789abcdef")))["plan_of_another_host"] == "error"
    assert "plan_of_another_host" not in codes(doctor(host, replace(plan, host=fingerprint(host))))


def test_a_plan_that_is_refused_is_an_error_with_the_refusals_code() -> None:
    refusal = PlacementError(
        "insufficient_cpus", "too few CPUs", seen="4", wanted="5 for each NPU", remedy="Allow more CPUs."
    )
    first = doctor(good(), refusal)[0]
    assert first == Finding(
        "error", "insufficient_cpus", "too few CPUs (seen: 4; wanted: 5 for each NPU)", "Allow more CPUs."
    )


def test_a_vendor_tool_that_failed_and_facts_of_no_sense_are_told() -> None:
    host = good()
    error = PlacementError("npu_map_unparseable", "no map", seen="x", wanted="rows", remedy="See npu-smi.")
    note = Finding("warning", "fact_unreadable", "a file", "Read it.")
    found = codes(doctor(replace(host, accelerators=replace(host.accelerators, errors=(error,)), notes=(note,))))
    assert (found["npu_map_unparseable"], found["fact_unreadable"]) == ("warning", "warning")


def test_the_gravest_comes_first() -> None:
    refusal = PlacementError("insufficient_cpus", "too few CPUs", seen="4", wanted="5", remedy="Allow more CPUs.")
    found = doctor(
        good(quota=2, offline=[15], numa_balancing=True), refusal, LiveFacts(irqbalance=8, irqs_writable=False)
    )
    ranks = [SEVERITIES.index(finding.severity) for finding in found]
    assert ranks == sorted(ranks, reverse=True)
    assert ranks[0] == 2 and ranks[-1] == 0
    assert "nothing_wrong" not in codes(found)


def test_findings_name_few_devices_and_count_the_rest() -> None:
    devices = tuple(PciDevice(f"0000:{at:02x}:00.0", 0x8086, 1, 0x020000, None, (), ()) for at in range(20))
    (finding,) = [one for one in doctor(replace(good(), devices=devices)) if one.code == "devices_without_node"]
    assert "20 network or NVMe functions" in finding.message
    assert "and 16 more" in finding.message


@given(
    st.sampled_from(["1s/1n/2c", "2s/4n/64c/smt2", "4s/8n/128c"]),
    st.sets(st.integers(0, 200)),
    st.sets(st.integers(0, 9)),
    st.one_of(st.none(), st.floats(0.1, 300)),
)
@settings(deadline=None, derandomize=True, max_examples=examples(60))
def test_any_limits_give_findings_that_can_be_acted_on(
    text: str, isolated: set[int], mems: set[int], quota: float | None
) -> None:
    host = read_host(synthetic(text))
    host = with_allowance(replace(host, isolated=tuple(sorted(isolated))), mems=tuple(sorted(mems)), cpu_quota=quota)
    host = replace(host, interrupts=(Interrupt(5, "x", ("y",)),))
    found = doctor(host, None, LiveFacts())
    assert found
    assert len({finding.code for finding in found}) == len(found)
    for finding in found:
        assert finding.severity in SEVERITIES
        assert finding.code and finding.message
        assert finding.remedy or finding.severity == "info"
