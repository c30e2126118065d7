"""Priority cores are told by what the kernel says of each core, and whoever waits for one thread is bound to them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list, parse_cpu_list
from homenode.engine.plan.host_threads import home_of_device
from homenode.host.bind.base.target import target_of
from homenode.host.discovery.read import read_host
from homenode.host.discovery.snapshot import load_recording, parse_recording, record
from homenode.host.plan.demand import Demand, Parallelism
from homenode.host.plan.plan import Plan, WorkerBinding
from homenode.host.plan.select import make_plan
from homenode.host.topology.describe import host_to_dict
from homenode.host.topology.host import Host
from homenode.host.topology.source import RecordedSource
from tests.examples import examples
from tests.host_values import Shape, host_of

RECORDED = Path(__file__).parents[1] / "hosts" / "xeon-32cpu-priority-cores.json"
CPU = "/sys/devices/system/cpu"
MODEL = "Intel(R) Xeon(R) 6776P"


def figures(file: str, *values: str) -> dict[str, str]:
    return {f"{CPU}/cpu{cpu}/{file}": value for cpu, value in enumerate(values) if value}


def machine(*parts: dict[str, str], cpus: int = 4) -> RecordedSource:
    files = {f"{CPU}/online": f"0-{cpus - 1}"}
    for part in parts:
        files |= part
    return RecordedSource("x86_64", files)


@pytest.mark.parametrize(
    ("files", "fast"),
    [
        (figures("acpi_cppc/highest_perf", "46", "38", "38", "38"), "0"),
        (figures("acpi_cppc/highest_perf", "38", "46", "38", "46"), "1,3"),
        (figures("acpi_cppc/highest_perf", "46", "46", "46", "38"), ""),  # most of them: the one is a slow core
        (figures("acpi_cppc/highest_perf", "40", "39", "38", "37"), ""),  # favoured cores of a desktop
        (figures("acpi_cppc/highest_perf", "46", "46", "46", "46"), ""),
        (figures("acpi_cppc/highest_perf", "46", "38", "38"), ""),  # one does not tell
        (figures("cpufreq/base_frequency", "2700000", "2100000", "2100000", "2100000"), "0"),
        (figures("cpufreq/base_frequency", "2100000", "2100000", "2100000", "2100000"), ""),
        (
            figures("acpi_cppc/highest_perf", "46", "46", "46", "46")
            | figures("cpufreq/base_frequency", "2100000", "2100000", "2100000", "2700000"),
            "3",
        ),
        (
            figures("acpi_cppc/highest_perf", "64", "64", "39", "39") | {"/sys/devices/cpu_atom/cpus": "2-3"},
            "",
        ),  # two kinds of cores are no priority cores
        ({}, ""),
    ],
)
def test_priority_cores_are_those_ahead_of_others_of_their_kind(files: dict[str, str], fast: str) -> None:
    host = read_host(machine(files), accelerators=False)
    assert format_cpu_list(cpu.id for cpu in host.cpus if cpu.priority) == fast
    assert host_to_dict(host)["cpus"]["priority"] == fast


def test_a_recording_keeps_the_figure_of_every_cpu_and_the_model_alone() -> None:
    info = f"processor\t: 0\nmodel name\t: {MODEL}\ncpu MHz\t: 812.4\n\nprocessor\t: 1\nmodel name\t: {MODEL}\n"
    source = machine(
        figures("acpi_cppc/highest_perf", "46", "38", "38", "38"),
        figures("cpufreq/base_frequency", "2700000", "2100000", "2100000", "2100000"),
        {"/proc/cpuinfo": info},
    )
    raw = record(source)
    kept = raw["files"]
    assert kept["/proc/cpuinfo"] == f"model name\t: {MODEL}"
    for cpu in range(4):
        assert f"{CPU}/cpu{cpu}/acpi_cppc/highest_perf" in kept
        assert f"{CPU}/cpu{cpu}/cpufreq/base_frequency" in kept
    again = read_host(parse_recording(raw))
    assert again.cpu_model == read_host(source).cpu_model == MODEL
    assert again.cpus == read_host(source).cpus


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("processor\t: 0\nBogoMIPS\t: 50.00\nCPU part\t: 0xd4f\n", ""),
        ("processor\t: 0\ncpu\t\t: POWER9, altivec supported\n", "POWER9, altivec supported"),
        ("model name\t:\n", ""),
        ("", ""),
    ],
)
def test_the_model_where_it_is_told_otherwise(text: str, model: str) -> None:
    assert read_host(machine({"/proc/cpuinfo": text}), accelerators=False).cpu_model == model


def recorded() -> Host:
    return read_host(load_recording(RECORDED))


def message(made: Plan) -> str:
    (finding,) = [finding for finding in made.findings if finding.code == "priority_cores"]
    assert finding.severity == "info"
    return finding.message


def bound(made: Plan) -> dict[str, str]:
    found = {f"device {worker.device}": format_cpu_list(worker.cpus) for worker in made.workers}
    return found | {place.name: format_cpu_list(place.cpus) for place in made.processes if place.cpus}


def test_workers_and_engine_core_are_bound_to_the_priority_cores_of_their_node() -> None:
    made = make_plan("numa-bind", recorded(), Demand(parallelism=Parallelism(tensor_parallel_size=2)))
    assert bound(made) == {
        "device 0": "0-1,8-9",
        "device 1": "16-17,24-25",
        "engine_core_dp0": "0-1,8-9,16-17,24-25",
    }
    assert [worker.memory_nodes for worker in made.workers] == [(0,), (1,)]
    assert "CPUs 0-1,8-9,16-17,24-25 are priority cores" in message(made)
    assert "highest_perf 46 against 38" in message(made)
    assert "device 0, the worker of device 1, engine_core_dp0 are bound to them" in message(made)


def test_each_rank_by_itself_comes_to_the_same_cores() -> None:
    whole = make_plan("numa-bind", recorded(), Demand())
    for rank in (0, 1):
        alone = make_plan("numa-bind", recorded(), Demand(local_rank=rank))
        assert alone.workers[0].cpus == whole.workers[rank].cpus


def test_cpu_lists_go_before_priority_cores_and_nodes_do_not() -> None:
    listed = make_plan("numa-bind", recorded(), Demand(numa_bind_cpus=("0-7", "16-23")))
    assert bound(listed) == {"device 0": "0-7", "device 1": "16-23", "engine_core_dp0": "0-31"}
    assert "the worker of device 0 has 0-1 of them" in message(listed)
    on_one = make_plan("numa-bind", recorded(), Demand(numa_bind_nodes=(1, 1)))
    assert set(bound(on_one).values()) == {"16-17,24-25"}


def with_priority(host: Host, fast: str) -> Host:
    cores = set(parse_cpu_list(fast))
    cpus = tuple(
        replace(cpu, highest_perf=46 if cpu.core in cores else 38, priority=cpu.core in cores) for cpu in host.cpus
    )
    return replace(host, cpus=cpus)


def test_a_node_with_fewer_priority_cores_than_processes_is_bound_as_a_whole() -> None:
    four = with_priority(host_of([Shape(0, 16)], {device: [0] for device in range(4)}, kind="cuda"), "0-3")
    made = make_plan("numa-bind", four, Demand())
    assert set(bound(made).values()) == {"0-15"}
    assert "the worker of device 3 has 0-3 of them" in message(made)
    five = with_priority(four, "0-4")
    assert set(bound(make_plan("numa-bind", five, Demand())).values()) == {"0-4"}


def test_siblings_of_priority_cores_are_theirs_too() -> None:
    host = with_priority(host_of([Shape(0, 8, smt=2)], {0: [0]}, kind="cuda", siblings_apart=True), "0-1")
    assert bound(make_plan("numa-bind", host, Demand())) == {"device 0": "0-1,8-9", "engine_core_dp0": "0-1,8-9"}


def test_fair_says_which_pools_have_them_and_what_binds_to_them() -> None:
    made = make_plan("fair", recorded(), Demand())
    assert "the worker of device 0 has 0-1,8-9 of them" in message(made)
    assert [finding.remedy for finding in made.findings if finding.code == "priority_cores"] == [
        "--numa-bind binds workers and engine cores to the priority cores of their node."
    ]


def test_workers_that_compute_use_all_cores() -> None:
    alone = with_priority(host_of([Shape(0, 8), Shape(1, 8, socket=1)], {}), "0-1,8-9")
    made = make_plan("numa-bind", alone, Demand(workers=2))
    assert bound(made) == {"device 0": "0-7", "device 1": "8-15"}
    assert "CPU worker 0 has 0-1 of them" in message(made)


@settings(max_examples=examples(60))
@given(st.data())
def test_whatever_the_host_priority_cores_are_told_and_cpus_stay_on_the_node(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(1, 3))
    size, smt = data.draw(st.integers(2, 8)), data.draw(st.integers(1, 2))
    near = {device: [data.draw(st.integers(0, nodes - 1))] for device in range(data.draw(st.integers(1, 5)))}
    plain = host_of([Shape(node, size, smt=smt) for node in range(nodes)], near, kind="cuda")
    heads = sorted({cpu.core for cpu in plain.cpus})
    fast = data.draw(st.sets(st.sampled_from(heads), max_size=len(heads) // 2))
    host = with_priority(plain, format_cpu_list(fast))
    before, made = make_plan("numa-bind", plain, Demand()), make_plan("numa-bind", host, Demand())
    told = [finding for finding in made.findings if finding.code == "priority_cores"]
    assert len(told) == bool(fast)
    for was, now in zip(before.workers, made.workers, strict=True):
        assert now.cpus and set(now.cpus) <= set(was.cpus)
        narrowed = now.cpus != was.cpus
        assert not narrowed or all(host.cpu_by_id[cpu].priority for cpu in now.cpus)
        if narrowed:
            sharers = sum(worker.cpus == now.cpus for worker in made.workers)
            assert len({host.cpu_by_id[cpu].core for cpu in now.cpus}) > sharers


def test_our_own_workers_on_devices_have_them_under_numa_bind() -> None:
    assert format_cpu_list(home_of_device(recorded(), "torch:cuda:1").others) == "16-17,24-25"


@pytest.mark.parametrize(
    ("roles", "threads"),
    [
        (
            {"irq": (0, 1), "main": (2, 3, 4, 5, 6), "acl": (7,), "release": (8,)},
            {"acl_thread": (7,), "release_thread": (8,), "ucm_": (5, 6)},
        ),
        ({"irq": (0, 1), "main": (2,), "acl": (3,), "release": (4,)}, {"acl_thread": (3,), "release_thread": (4,)}),
        ({"irq": (0,), "main": (1, 2, 3)}, {}),
    ],
)
def test_threads_of_a_kv_store_have_the_back_half_of_the_process(
    roles: dict[str, tuple[int, ...]], threads: dict[str, tuple[int, ...]]
) -> None:
    cpus = tuple(sorted({cpu for own in roles.values() for cpu in own}))
    assert target_of(WorkerBinding(0, 0, cpus, roles, (), ""), None).threads == threads
