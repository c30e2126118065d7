"""NUMA nodes and memory settings read from small recorded trees."""

from __future__ import annotations

import pytest

from homenode.host.discovery.read import read_host
from homenode.host.topology.host import Host
from homenode.host.topology.source import RecordedSource

NODE = "/sys/devices/system/node"


def host_of(nodes: dict[str, str], cpus: str = "0-3", **files: str) -> Host:
    """A host with files below /sys/devices/system/node (`nodes`) and elsewhere (`files`: `__` for a slash)."""
    paths = {"/sys/devices/system/cpu/online": cpus, **{f"{NODE}/{name}": text for name, text in nodes.items()}}
    return read_host(
        RecordedSource("x86_64", paths | {"/" + name.replace("__", "/"): text for name, text in files.items()}),
        accelerators=False,
    )


def test_two_plain_nodes() -> None:
    host = host_of(
        {
            "online": "0-1",
            "node0/cpulist": "0-1",
            "node0/distance": "10 21",
            "node0/meminfo": "Node 0 MemTotal:       1024 kB\nNode 0 MemFree:  5 kB\nNode 0 HugePages_Total:     0",
            "node0/hugepages/hugepages-2048kB/nr_hugepages": "7",
            "node0/hugepages/hugepages-1048576kB/nr_hugepages": "0",
            "node0/hugepages/hugepages-xkB/nr_hugepages": "1",
            "node1/cpulist": "2-3",
            "node1/distance": "22 10",
        }
    )
    assert [(node.id, node.cpus, node.memory, node.distances) for node in host.nodes] == [
        (0, (0, 1), 1 << 20, {0: 10, 1: 21}),
        (1, (2, 3), None, {0: 22, 1: 10}),
    ]
    assert host.nodes[0].huge_pages == {2 << 20: 7, 1 << 30: 0}
    assert (host.distance(0, 1), host.distance(1, 0)) == (21, 22)
    assert [cpu.node for cpu in host.cpus] == [0, 0, 1, 1]


def test_what_is_free_on_a_node_is_its_part_of_what_the_machine_has_available() -> None:
    free = "Node {0} MemTotal: 8000 kB\nNode {0} MemFree: {1} kB\nNode {0} Inactive(file): {2} kB"
    nodes = {
        "online": "0-2",
        "node0/meminfo": free.format(0, 100, 200),
        "node1/meminfo": free.format(1, 600, 100),
        "node2/meminfo": "Node 2 MemTotal: 8000 kB",
    }
    assert [node.free for node in host_of(nodes).nodes] == [300 << 10, 700 << 10, None], (
        "where only the nodes tell, all of it"
    )
    told = host_of(nodes, proc__meminfo="MemTotal: 24000 kB\nMemAvailable: 500 kB")
    assert [node.free for node in told.nodes] == [150 << 10, 350 << 10, None], "half of it cannot be had"
    assert told.nodes == host_of(nodes).nodes, "it never rests, so it takes no part in comparisons"


def test_sparse_ids_without_processors_and_without_memory() -> None:
    """The third figure of a row belongs to the third online node, which is node 250 here."""
    host = host_of(
        {
            "online": "0,8,250",
            "node0/cpulist": "0-3",
            "node0/distance": "10 40 80",
            "node0/meminfo": "Node 0 MemTotal: 0 kB",
            "node8/cpulist": "4-7",
            "node8/distance": "40 10 60",
            "node250/cpulist": "",
            "node250/distance": "80 60 10",
            "node250/meminfo": "Node 250 MemTotal: 16777216 kB",
        },
        "0-7",
    )
    assert host.node_by_id[250].distances == {0: 80, 8: 60, 250: 10}
    assert (host.node_by_id[250].cpus, host.node_by_id[250].memory, host.node_by_id[0].memory) == ((), 16 << 30, 0)
    assert host.distance(8, 250) == 60


def test_masks_of_older_kernels_and_node_folders_without_a_list() -> None:
    host = host_of({"node0/cpumap": "00000000,00000003", "node2/cpumap": "00000000,0000000c", "has_cpu": "0,2"})
    assert [(node.id, node.cpus) for node in host.nodes] == [(0, (0, 1)), (2, (2, 3))]


def test_offline_cpus_are_on_no_node() -> None:
    assert host_of({"online": "0", "node0/cpulist": "0-3"}, "0-1,3").nodes[0].cpus == (0, 1, 3)


def test_emulated_nodes_share_cpus_and_the_lowest_names_them() -> None:
    host = host_of({"online": "0-1", "node0/cpulist": "0-3", "node1/cpulist": "0-3"})
    assert [node.cpus for node in host.nodes] == [(0, 1, 2, 3)] * 2
    assert {cpu.node for cpu in host.cpus} == {0}


def test_a_kernel_without_numa_has_no_nodes() -> None:
    host = host_of({})
    assert host.nodes == ()
    assert {cpu.node for cpu in host.cpus} == {None}
    assert host.numa_balancing is None


@pytest.mark.parametrize("row", ["", "0 0", "10", "10 20 30", "10 x"], ids=["none", "noughts", "short", "long", "junk"])
def test_rows_that_cannot_be_trusted_give_way_and_are_noted(row: str) -> None:
    host = host_of(
        {"online": "0-1", "node0/cpulist": "0", "node0/distance": row, "node1/cpulist": "1", "node1/distance": "30 10"}
    )
    assert [node.distances for node in host.nodes] == [{0: 10, 1: 20}, {0: 30, 1: 10}]
    assert [note.code for note in host.notes].count("no_distances") == 1


def test_one_node_needs_no_distances() -> None:
    host = host_of({"online": "0", "node0/cpulist": "0-3"})
    assert host.nodes[0].distances == {0: 10}
    assert "no_distances" not in [note.code for note in host.notes]


def test_more_nodes_than_a_kernel_can_have_are_cut() -> None:
    host = host_of({"online": "0-65535"})
    assert len(host.nodes) == 1024
    assert "too_many_nodes" in [note.code for note in host.notes]


@pytest.mark.parametrize(("text", "seen"), [("0\n", False), ("1", True), ("2", True), ("on", None)])
def test_numa_balancing(text: str, seen: bool | None) -> None:
    assert host_of({}, proc__sys__kernel__numa_balancing=text).numa_balancing is seen


@pytest.mark.parametrize(
    ("text", "seen"), [("always [madvise] never", "madvise"), ("[always] madvise never", "always"), ("always", "")]
)
def test_transparent_huge_pages(text: str, seen: str) -> None:
    assert host_of({}, sys__kernel__mm__transparent_hugepage__enabled=text).transparent_huge_pages == seen


def test_kernel_and_isolated_cpus() -> None:
    host = host_of({}, proc__sys__kernel__osrelease="6.1.0-arm64\n", sys__devices__system__cpu__isolated="2-3\n")
    assert (host.kernel, host.isolated) == ("6.1.0-arm64", (2, 3))
