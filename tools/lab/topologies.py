"""The machines of the lab: what nodes they have, and qemu's words for that. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Node:
    """`cpus`: how many it has; `mib`: its memory. Either may be 0."""

    cpus: int
    mib: int


@dataclass(frozen=True, slots=True)
class Topology:
    """A machine. `distances` between two nodes hold both ways, 20 where none is given; `devices`: a node and what is
    attached to it.
    """

    name: str
    about: str
    nodes: tuple[Node, ...]
    sockets: int
    threads_per_core: int = 1
    distances: Mapping[tuple[int, int], int] = field(default_factory=lambda: MappingProxyType({}))
    devices: tuple[tuple[int, str], ...] = ()

    @property
    def cpus(self) -> int:
        return sum(node.cpus for node in self.nodes)

    @property
    def mib(self) -> int:
        return sum(node.mib for node in self.nodes)

    @property
    def savable(self) -> bool:
        """qemu cannot save a machine with an nvme device."""
        return all(kind != "nvme" for _, kind in self.devices)


_CARD = ((1, "network"),)
_FAR = {(0, 1): 12, (2, 3): 12, (0, 2): 32, (0, 3): 32, (1, 2): 32, (1, 3): 32}
_RING = {(0, 1): 16, (0, 2): 22, (0, 3): 28, (1, 2): 28, (1, 3): 22, (2, 3): 16}
TOPOLOGIES = {
    one.name: one
    for one in (
        Topology("2x2", "two nodes, two CPUs each", (Node(2, 768),) * 2, 2, devices=_CARD),
        Topology("4nodes", "four nodes, distances 16 to 28", (Node(2, 640),) * 4, 4, distances=_RING,
            devices=((2, "network"),)),
        Topology("8x2", "eight nodes", (Node(2, 512),) * 8, 8, devices=_CARD),
        Topology("smt", "two nodes, two threads a core", (Node(4, 768),) * 2, 2, threads_per_core=2, devices=_CARD),
        Topology("2s4n", "two sockets of two nodes each", (Node(2, 640),) * 4, 2, distances=_FAR, devices=_CARD),
        Topology("memless", "the third node has CPUs only", (Node(2, 768), Node(2, 768), Node(2, 0)), 3, devices=_CARD),
        Topology(
            "cpuless", "the third node has memory only", (Node(2, 768), Node(2, 768), Node(0, 512)), 2,
            distances={(0, 1): 21, (0, 2): 17, (1, 2): 28}, devices=_CARD,
        ),
        Topology("6x2", "two nodes, six CPUs each: enough for two NPUs", (Node(6, 640),) * 2, 2),
        Topology("managed", "a disk whose interrupts the kernel keeps", (Node(6, 640),) * 2, 2,
            devices=((1, "network"), (1, "nvme"))),
    )
}  # fmt: skip


def machine_words(topology: Topology, arch: str) -> list[str]:
    """Options of qemu for the nodes and what is attached to them; devices on nodes need ACPI, which the Arm machine
    starts without.
    """
    shape = (
        f"{topology.cpus},sockets={topology.sockets},"
        f"cores={topology.cpus // topology.sockets // topology.threads_per_core}"
    )
    words = ["-m", f"{topology.mib}M", "-smp", f"{shape},threads={topology.threads_per_core}"]
    first = 0
    for number, node in enumerate(topology.nodes):
        word = f"node,nodeid={number}"
        if node.mib:
            words += ["-object", f"memory-backend-ram,id=memory{number},size={node.mib}M"]
            word += f",memdev=memory{number}"
        if node.cpus:
            word += f",cpus={first}-{first + node.cpus - 1}"
            first += node.cpus
        words += ["-numa", word]
    for (one, other), far in topology.distances.items():
        words += ["-numa", f"dist,src={one},dst={other},val={far}"]
    return words + (_device_words(topology) if arch == "x86_64" else [])


def _device_words(topology: Topology) -> list[str]:
    """Each device behind a bridge on its node. The network cards lead nowhere; the disk holds zeros."""
    words = []
    for number, (node, kind) in enumerate(topology.devices):
        words += ["-device", f"pxb-pcie,id=bridge{number},bus_nr={32 + 16 * number},numa_node={node},bus=pcie.0"]
        words += [
            "-device",
            f"pcie-root-port,id=port{number},bus=bridge{number},chassis={number + 1},slot={number + 1}",
        ]
        if kind == "nvme":
            words += ["-blockdev", f"null-co,node-name=zeros{number},size=1073741824,read-zeroes=on"]
            words += ["-device", f"nvme,serial=lab{number},drive=zeros{number},bus=port{number}"]
        else:
            words += ["-netdev", f"hubport,hubid={number},id=net{number}"]
            words += ["-device", f"virtio-net-pci,netdev=net{number},bus=port{number},mq=on,vectors=6"]
    return words
