"""Speeds at which a machine's nodes read, multiply and wait for each other: as measured, or as machines of these
distances typically do. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from homenode.errors import UserError
from homenode.host.topology.host import Host
from homenode.host.topology.measured import Measured

# Typical figures, taken where nothing was measured. A core of a server has 4 to 7 GB/s of its socket's memory (140 GB/s
# for 28 cores with six channels DDR4-2933, 460 for 84 with twelve DDR5-4800), a lone thread reads 8 to 35 GB/s; a
# machine with few cores has two channels at least.
_CORE_GB_S = 6.0
_THREAD_GB_S = 12.0
_LEAST_NODE_GB_S = 40.0
_THREAD_GOPS = 150.0  # of bytes: 32 multiply-adds a cycle at 2.3 GHz, what AVX2 does
_REMOTE_POWER = (
    1.2  # bandwidth falls with (local distance / distance) to this power: 0.41 of the local one at 21, 0.80 at 12
)
_LOCAL_DISTANCE = 10
_MEETING_US = 0.15  # one level of a tree barrier inside a node: two transfers of a cache line
_FARTHEST = 255  # what firmware says for "cannot be reached": then nothing is known


class TeamOfNode(Protocol):
    """Threads of one node as placement hands them out (`node_teams.NodeTeam`)."""

    @property
    def node(self) -> int:
        """Return the node of their CPUs."""

    @property
    def memory_node(self) -> int:
        """Return where their memory comes from."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """One for each thread."""


@dataclass(frozen=True, slots=True)
class NodeSpeed:
    """One node's threads together.

    read_gb_s: reading memory of their own, 1e9 bytes a second. int8_gops: multiplying bytes, 1e9 operations a second, a
    multiply-add being two. memory_node: where that memory is when the node has none; None: on the node itself.
    """

    node: int
    threads: int
    read_gb_s: float
    int8_gops: float
    memory_node: int | None = None

    @property
    def memory(self) -> int:
        """The node whose memory this node's threads call their own."""
        return self.node if self.memory_node is None else self.memory_node


@dataclass(frozen=True, slots=True)
class MachineSpeed:
    """The nodes of an engine.

    remote_gb_s: 1e9 bytes a second, by (reading node, node of the memory), all threads of the first reading at once
    while nobody else does. barrier_us, barrier_across_us: until all threads of one node, or of all nodes, have met.
    origin: where the figures come from, in words.
    """

    nodes: tuple[NodeSpeed, ...]
    remote_gb_s: Mapping[tuple[int, int], float]
    barrier_us: float
    barrier_across_us: float
    origin: str = ""

    def bandwidth(self, reader: NodeSpeed, memory: int) -> float:
        """GB/s of a node's threads from the memory of any node; that of their own where nothing else is known."""
        return (
            reader.read_gb_s
            if memory == reader.memory
            else self.remote_gb_s.get((reader.node, memory), reader.read_gb_s)
        )


def machine_speed(teams: Sequence[TeamOfNode], host: Host, measured: Measured | None) -> MachineSpeed:
    """The speed of these teams: the measured figures (`homenode bench nodes`, a thread on each core) scaled to their
    cores, else typical ones.

    UserError when the measurement lacks a node, and for no teams at all.
    """
    if not teams:
        raise UserError("no node has a CPU that this process may use")
    return _typical(teams, host) if measured is None else _as_measured(teams, host, measured)


def _as_measured(teams: Sequence[TeamOfNode], host: Host, measured: Measured) -> MachineSpeed:
    known = {node.node: node for node in measured.nodes}
    lacking = [team.node for team in teams if team.node not in known]
    if lacking:
        raise UserError(
            f"the measurement is of node {', '.join(map(str, sorted(known)))}, and node "
            f"{', '.join(map(str, lacking))} is to be used; "
            "measure again on this machine with: homenode bench nodes --out FILE",
            param="numa_measured",
        )
    nodes = []
    for team in teams:
        found = known[team.node]
        share = len(_cores(team, host)) / found.threads
        own = measured.read_gb_s.get((team.node, team.memory_node), found.read_gb_s)
        nodes.append(_speed(team, own * min(1.0, share), found.int8_gops * share))
    own_memory = {(team.node, team.memory_node) for team in teams}
    remote = {pair: speed for pair, speed in measured.read_gb_s.items() if pair not in own_memory}
    return MachineSpeed(tuple(nodes), remote, measured.barrier_us, measured.barrier_across_us, "measured")


def _typical(teams: Sequence[TeamOfNode], host: Host) -> MachineSpeed:
    nodes = tuple(_typical_node(team, host) for team in teams)
    remote = {
        (speed.node, other.memory): speed.read_gb_s * _remote_share(host, speed.node, other.memory)
        for speed in nodes
        for other in nodes
        if other.memory != speed.memory
    }
    levels = max(math.ceil(math.log2(speed.threads)) for speed in nodes) + 1
    farthest = max(_distance(host, a.node, b.node) for a in nodes for b in nodes)
    across = math.ceil(math.log2(len(nodes))) * farthest / _LOCAL_DISTANCE
    barrier = _MEETING_US * levels
    return MachineSpeed(
        nodes, remote, barrier, barrier + 2 * _MEETING_US * across, "typical of such distances, not measured here"
    )


def _typical_node(team: TeamOfNode, host: Host) -> NodeSpeed:
    cores = _cores(team, host)
    node = host.node_by_id.get(team.node)
    all_cores = len({host.cpu_by_id[cpu].core for cpu in node.cpus if cpu in host.cpu_by_id}) if node else len(cores)
    channels = max(_LEAST_NODE_GB_S, _CORE_GB_S * max(all_cores, len(cores)))
    read = min(_THREAD_GB_S * len(cores), channels) * _remote_share(host, team.node, team.memory_node)
    return _speed(team, read, _THREAD_GOPS * len(cores))


def _cores(team: TeamOfNode, host: Host) -> set[int]:
    """Return the cores of the team's threads: two on one core multiply and read no more than one."""
    return {host.cpu_by_id[cpu].core if cpu in host.cpu_by_id else cpu for cpu in team.cpus}


def _speed(team: TeamOfNode, read: float, gops: float) -> NodeSpeed:
    return NodeSpeed(team.node, len(team.cpus), read, gops, None if team.memory_node == team.node else team.memory_node)


def _remote_share(host: Host, node: int, other: int) -> float:
    """Return, of the local bandwidth, what is left at this distance."""
    return float((_LOCAL_DISTANCE / max(_distance(host, node, other), _LOCAL_DISTANCE)) ** _REMOTE_POWER)


def _distance(host: Host, node: int, other: int) -> int:
    """Return the distance as the firmware says it; two sockets' where it says nothing."""
    found = host.distance(node, other)
    return 21 if found >= _FARTHEST else found
