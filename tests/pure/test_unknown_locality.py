"""A device of which nobody tells the node: no reader, no strategy and no drawing gives it one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from homenode.cpuset import format_cpu_list
from homenode.errors import PlacementError
from homenode.host.discovery.read import read_host
from homenode.host.doctor.doctor import doctor
from homenode.host.plan.demand import Demand
from homenode.host.plan.select import make_plan
from homenode.host.topology.describe import host_to_dict
from homenode.host.topology.host import Host, Node
from homenode.host.topology.nodes import tells_place
from homenode.host.topology.source import CommandResult, RecordedSource
from tests.examples import examples
from tests.recorded import recorded_host

CPU, NODE, PCI = "/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/bus/pci/devices"
VENDORS = {"nvidia": ("0x10de", "0x030200"), "amd": ("0x1002", "0x120000")}
NODES = {0: "0-3", 1: "4-7"}


def machine(
    numa_node: str | None = "-1",
    local: str | None = "0-7",
    vendor: str = "nvidia",
    nodes: dict[int, str] = NODES,
    commands: dict[str, str] | None = None,
    files: dict[str, str] | None = None,
) -> Host:
    """A host with one device at 0000:41:00.0 whose place is told as given."""
    code, kind = VENDORS.get(vendor, ("0x19e5", "0x120000"))
    device = {f"{PCI}/0000:41:00.0/vendor": code, f"{PCI}/0000:41:00.0/class": kind}
    device |= {} if numa_node is None else {f"{PCI}/0000:41:00.0/numa_node": numa_node}
    device |= {} if local is None else {f"{PCI}/0000:41:00.0/local_cpulist": local}
    texts = {f"{CPU}/online": "0-7", "/proc/self/status": "Cpus_allowed_list:\t0-7\nMems_allowed_list:\t0-1"}
    texts |= {f"{NODE}/node{node}/cpulist": cpus for node, cpus in nodes.items()}
    texts |= {f"{NODE}/node{node}/meminfo": f"Node {node} MemTotal: 8388608 kB" for node in nodes}
    tools = {words: CommandResult(text) for words, text in (commands or {}).items()}
    return read_host(RecordedSource("x86_64", texts | device | (files or {}), tools))


def topo(cpus: str, node: str = "N/A") -> dict[str, str]:
    """nvidia-smi that says this of the device."""
    head = "\tGPU0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    return {
        "nvidia-smi --query-gpu=index,uuid,pci.bus_id,name --format=csv,noheader": "0, GPU-0, 00000000:41:00.0, A100",
        "nvidia-smi topo -m": f"{head}GPU0\t X \t{cpus}\t{node}\t\tN/A\n",
    }


def npu(cpus: str) -> dict[str, str]:
    """npu-smi that says this of the device."""
    return {
        "npu-smi info -m": "NPU ID  Chip ID  Chip Logic ID  Chip Name\n0  0  0  Ascend 910B2\n",
        "npu-smi info -t topo": f"        NPU0    CPU Affinity\nNPU0    X       {cpus}\n",
    }


def kfd(location: int) -> dict[str, str]:
    folder = "/sys/class/kfd/kfd/topology/nodes/1"
    bridge = f"{PCI}/0000:00:00.0"
    return {
        f"{folder}/properties": f"simd_count 8\nlocation_id {location}\n",
        f"{folder}/gpu_id": "7",
        f"{bridge}/numa_node": "1",
        f"{bridge}/local_cpulist": "4-7",
        f"{bridge}/class": "0x060000",
    }


UNKNOWN: dict[str, Callable[[], Host]] = {
    "the kernel lists all CPUs": lambda: machine(),
    "a node that is not there": lambda: machine("7", "0-7"),
    "no numa_node at all": lambda: machine(None, "0-7"),
    "nothing at all": lambda: machine(None, None),
    "AMD": lambda: machine(vendor="amd"),
    "AMD's driver tells no address": lambda: machine(vendor="amd", files=kfd(0)),
    "AMD's driver tells the address": lambda: machine(vendor="amd", files=kfd(0x4100)),
    "nvidia-smi repeats all CPUs": lambda: machine(commands=topo("0-7", "0-1")),
    "nvidia-smi says nothing": lambda: machine(commands=topo("N/A")),
    "nvidia-smi cuts all CPUs to a container's": lambda: machine(commands=topo("2-5")),
    "npu-smi repeats all CPUs": lambda: machine(vendor="ascend", commands=npu("0-7")),
    "nodes that all have all CPUs": lambda: machine(nodes={0: "0-7", 1: "0-7"}),
    "recorded guest": lambda: recorded_host("guest-96cpu-4gpu-no-place"),
    "recorded MI300X": lambda: recorded_host("epyc-192cpu-8gpu-no-place"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_place_stays_one(name: str) -> None:
    host = UNKNOWN[name]()
    chips = host.accelerators.chips
    assert chips and {chip.node for chip in chips} == {None}
    fair = make_plan("fair", host, Demand())
    assert "locality_unknown" in {finding.code for finding in fair.findings}
    assert all(finding.code != "pool_not_local" for finding in fair.findings)
    if chips[0].kind != "npu":
        with pytest.raises(PlacementError) as refused:
            make_plan("numa-bind", host, Demand())
        assert refused.value.code == "numa_node_unknown"
    bound = make_plan("numa-bind", host, Demand(numa_bind_nodes=(1,) * len(chips))) if chips[0].kind != "npu" else None
    assert bound is None or {worker.memory_node for worker in bound.workers} == {1}
    if any(device.address == chips[0].address for device in host.devices):
        assert "accelerators_without_node" in {finding.code for finding in doctor(host)}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_shown_of_a_device_of_unknown_place_is_near_no_cpu(name: str) -> None:
    """Also of devices that are no accelerators, and whatever the kernel lists for them."""
    unplaced = [device for device in host_to_dict(UNKNOWN[name]())["devices"] if device["node"] is None]
    assert unplaced and {device["local_cpus"] for device in unplaced} == {""}


@pytest.mark.parametrize(
    ("host", "node"),
    [
        (lambda: machine("1", "4-7"), 1),
        (lambda: machine("1", "0-7"), 1),  # the node is told, whatever the list says
        (lambda: machine("-1", "4-7"), 1),  # so is it here
        (lambda: machine("-1", "0-3,7"), 0),
        (lambda: machine("-1", "0-7", nodes={0: "0-7"}), 0),  # there is no other
        (lambda: machine("-1", "0-7", nodes={0: "0-7", 1: ""}), 0),
        (lambda: machine("-1", "0-7", commands=topo("4-7", "1")), 1),
        (lambda: machine("-1", "0-7", commands=topo("0-7", "1")), 1),
        (lambda: machine("1", "4-7", commands=topo("N/A")), 1),
        (lambda: machine("1", "4-7", vendor="amd"), 1),
        (lambda: machine("-1", "0-7", vendor="ascend", commands=npu("4-7")), 1),
    ],
)
def test_a_known_place_is_the_same_for_all(host: Callable[[], Host], node: int) -> None:
    seen = host()
    assert [chip.node for chip in seen.accelerators.chips] == [node]
    fair = make_plan("fair", seen, Demand())
    assert [worker.memory_node for worker in fair.workers] == [node]
    assert "locality_unknown" not in {finding.code for finding in fair.findings}
    if seen.accelerators.kind != "npu":
        assert [worker.memory_node for worker in make_plan("numa-bind", seen, Demand()).workers] == [node]


@pytest.mark.parametrize(
    ("host", "node", "told"),
    [
        (lambda: machine("1", "0-3"), 1, "numa_node and local_cpulist"),
        (lambda: machine("1", "4-7", commands=topo("0-3", "0")), 0, "the firmware node 1"),
        (lambda: machine("-1", "0-7", commands=topo("0-3", "1")), 1, "but local CPUs 0-3"),
    ],
)
def test_two_places_are_one_and_a_finding(host: Callable[[], Host], node: int, told: str) -> None:
    seen = host()
    notes = [note for note in (*seen.notes, *seen.accelerators.notes) if note.code == "device_place_disagrees"]
    assert len(notes) == 1 and told in notes[0].message
    for strategy in ("fair", "numa-bind"):
        assert [worker.memory_node for worker in make_plan(strategy, seen, Demand()).workers] == [node]


@settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
@given(st.lists(st.integers(1, 12), min_size=2, max_size=5), st.data())
def test_what_a_list_of_cpus_tells(sizes: list[int], data: st.DataObject) -> None:
    """All CPUs tell nothing, whatever the nodes' sizes; those of some of the nodes do, also where a cpuset
    cuts them.
    """
    nodes, at = [], 0
    for number, size in enumerate(sizes):
        nodes.append(Node(number, tuple(range(at, at + size)), None, {}))
        at += size
    assert not tells_place(range(at), nodes)
    assert not tells_place((), nodes)
    some = data.draw(st.sets(st.sampled_from(range(len(nodes))), min_size=1, max_size=len(nodes) - 1))
    near = [cpu for number in sorted(some) for cpu in nodes[number].cpus]
    assert tells_place(near, nodes)
    assert tells_place(data.draw(st.sets(st.sampled_from(near), min_size=1)), nodes), format_cpu_list(near)
