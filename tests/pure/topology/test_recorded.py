"""Real machines read from their recordings, held to what hwloc read from the same files (tests/hosts/README.md)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from homenode.cpuset import format_cpu_list
from homenode.host.discovery.read import read_host
from homenode.host.discovery.snapshot import parse_recording, record
from homenode.host.topology.describe import fingerprint, host_to_dict
from homenode.host.topology.host import Cpu, Host
from tests.recorded import HOSTS, NAMES, opinions, recorded_host, recording

KNOWN = tuple(name for name in NAMES if name in opinions())

# Where hwloc and we differ on purpose.
OTHER_OPINIONS = {
    (
        "opteron-64cpu-modules",
        "cores",
    ): "the kernel calls the halves of a Bulldozer module siblings, and they share what siblings share",
    ("power-256cpu-sparse-nodes", "sockets"): "the socket id is -1: hwloc makes every core a socket, we make all one",
    ("power7-16cpu", "sockets"): "the socket id is -1",
    ("power7-64cpu-cpuless-node", "sockets"): "the socket id is -1",
    ("s390-20cpu-books", "sockets"): "the socket id is -1",
    (
        "xeon-40cpu-pci-conflicts",
        "sockets",
    ): "hwloc drops a socket that the wrong local CPUs of PCI functions contradict",
    ("xeon-40cpu-pci-conflicts", "l3"): "hwloc drops a cache for the same reason",
}

# Hosts on which two files tell different things.
DISAGREEING = {
    "lxcfs-64cpu-renumbered": {"online_disagrees"},
    "guest-4cpu-siblings-across-nodes": {"siblings_across_nodes"},
}


def sets(host: Host, kind: Callable[[Cpu], int | None]) -> str:
    """The CPUs of each core, socket or cache, in the form of the opinions."""
    found: dict[int, list[int]] = {}
    for cpu in host.cpus:
        name = kind(cpu)
        if name is not None:
            found.setdefault(name, []).append(cpu.id)
    return "|".join(format_cpu_list(cpus) for cpus in sorted(found.values()))


def readings(host: Host) -> dict[str, object]:
    return {
        "cpus": format_cpu_list(cpu.id for cpu in host.cpus),
        "cores": sets(host, lambda cpu: cpu.core),
        "sockets": sets(host, lambda cpu: cpu.socket),
        "l3": sets(host, lambda cpu: cpu.l3),
        "nodes": {str(node.id): node.memory for node in host.nodes},
        "node_cpus": {str(node.id): format_cpu_list(node.cpus) for node in host.nodes},
        "distances": {str(node.id): [node.distances[there] for there in sorted(node.distances)] for node in host.nodes},
    }


def test_there_are_many_hosts() -> None:
    assert len(NAMES) >= 35 and set(opinions()) <= set(NAMES)
    listed = (HOSTS / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"| {name} |" not in listed] == []
    assert sum(path.stat().st_size for path in HOSTS.iterdir()) < 2_500_000


@pytest.mark.parametrize("name", KNOWN)
def test_hwloc_reads_the_same(name: str) -> None:
    opinion, reading = opinions()[name], readings(recorded_host(name))
    differing = {fact for fact in opinion if reading[fact] != opinion[fact]}
    # hwloc leaves out what it was not told (sockets of a PlayStation, distances of a single node), where we fill in the
    # plain case.
    differing -= {fact for fact in ("sockets", "distances") if not opinion[fact]}
    assert differing == {fact for host, fact in OTHER_OPINIONS if host == name}


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_host_is_whole(name: str) -> None:
    host = recorded_host(name)
    ids = [cpu.id for cpu in host.cpus]
    assert ids == sorted(set(ids)) and not set(ids) & set(host.offline)
    assert set(host.allowance.cpus) <= set(ids)
    for cpu in host.cpus:
        assert host.cpu_by_id[cpu.core].core == cpu.core and 0 < cpu.capacity <= 1024
        if cpu.node is not None:
            assert cpu.id in host.node_by_id[cpu.node].cpus
    for node in host.nodes:
        assert set(node.distances) == {other.id for other in host.nodes} and set(node.cpus) <= set(ids)
    assert all(device.node is None or device.node in host.node_by_id for device in host.devices)
    of_all = {"no_affinity_mask", "no_distances"}
    assert {note.code for note in host.notes} - of_all == DISAGREEING.get(name, set())


@pytest.mark.parametrize("name", NAMES)
def test_recording_a_recording_changes_nothing(name: str) -> None:
    again = parse_recording(record(recording(name)))
    assert again.files == {path: text.strip() for path, text in recording(name).files.items()}
    host = read_host(again)
    assert host == recorded_host(name)
    assert host_to_dict(host) == host_to_dict(recorded_host(name)) and fingerprint(host) == fingerprint(
        recorded_host(name)
    )


def test_hosts_have_fingerprints_of_their_own() -> None:
    assert len({fingerprint(recorded_host(name)) for name in NAMES}) == len(NAMES)


# What hwloc's tree does not show, or what is easily got wrong; figures taken from the captured files by hand.


def test_distance_rows_are_positional_over_sparse_ids() -> None:
    host = recorded_host("power9-6gpu-sparse-nodes")
    assert [node.id for node in host.nodes] == [0, 8, 250, 251, 252, 253, 254, 255]
    assert (host.distance(0, 8), host.distance(0, 255), host.distance(250, 255)) == (40, 80, 80)
    assert [len(node.cpus) for node in host.nodes] == [16, 16, 0, 0, 0, 0, 0, 0]


def test_distances_of_fast_memory() -> None:
    host = recorded_host("xeon-phi-64cpu-hbm")  # hwloc does not show these
    assert [host.distance(4, there) for there in range(8)] == [41, 31, 41, 41, 10, 41, 41, 41]


def test_clusters_of_arm_cores() -> None:
    host = recorded_host("arm-128cpu-clusters")
    assert sets(host, lambda cpu: cpu.cluster) == "|".join(f"{cpu}-{cpu + 3}" for cpu in range(0, 128, 4))
    assert {cpu.socket for cpu in host.cpus} == {36, 8442}


def test_cores_of_unequal_speed() -> None:
    host = recorded_host("arm-dgx-spark")
    fast = [cpu.id for cpu in host.cpus if cpu.capacity > 950]
    assert format_cpu_list(fast) == "5-9,15-19" and {cpu.capacity for cpu in host.cpus if cpu.id not in fast} == {
        718,
        731,
    }


def test_cores_of_two_kinds() -> None:
    host = recorded_host("core-hybrid-20cpu")
    slow = [cpu.id for cpu in host.cpus if cpu.capacity < 700]
    assert (
        format_cpu_list(slow) == "12-19"
        and sets(host, lambda cpu: cpu.core) == "0-1|2-3|4-5|6-7|8-9|10-11|12|13|14|15|16|17|18|19"
    )
    assert sets(host, lambda cpu: cpu.cluster).endswith("|12-15|16-19")


def test_offline_cpus() -> None:
    assert recorded_host("xeon-offline-first-node").offline == (0, 1, 2, 3, 21, 22, 23)
    assert recorded_host("opteron-16cpu-offline").offline == (4,)


def test_pci_functions_and_their_nodes() -> None:
    host = recorded_host("xeon-32cpu-xeon-phi")
    phi = next(device for device in host.devices if (device.vendor, device.kind >> 16) == (0x8086, 0x0B))
    assert (phi.address, phi.node, format_cpu_list(phi.local_cpus)) == ("0000:83:00.0", 1, "8-15")
    assert {device.node for device in host.devices} == {None, 0, 1}


def test_interrupts_of_our_own_recording() -> None:
    host = recorded_host("microvm-2cpu")
    named = {one.irq for one in host.interrupts}
    assert host.devices and all(set(device.irqs) <= named for device in host.devices if device.irqs)


def test_a_limit_to_one_memory_node_on_a_machine_of_three() -> None:
    host = recorded_host("qemu-6cpu-memless-node")
    assert [(node.id, bool(node.memory), format_cpu_list(node.cpus)) for node in host.nodes] == [
        (0, True, "0-1"),
        (1, True, "2-3"),
        (2, False, "4-5"),
    ]
    allowance = host.allowance
    assert (format_cpu_list(allowance.cpus), allowance.mask_origin, allowance.mems) == ("2-5", "cpuset", (1,))
    network = next(device for device in host.devices if device.address == "0000:21:00.0")
    assert (network.node, format_cpu_list(network.local_cpus), network.irqs) == (1, "2-3", (30, 31, 32))
    assert {one.irq: one.actions for one in host.interrupts}[32] == ("virtio2-output.0",)
