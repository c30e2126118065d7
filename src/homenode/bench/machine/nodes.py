"""Speed at which the threads of each NUMA node read the memory of each node, and the time that nodes need to meet: what
the cost model of --numa wants to know.

Reading is measured with the loops that set the ceilings of the other benchmarks, all threads of one node at once,
nobody else reading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Protocol

from homenode.bench.machine.repetition import Meter, take_reading
from homenode.host.plan.resources.memory_nodes import memory_nodes
from homenode.host.topology.host import Host
from homenode.host.topology.measured import FORMAT, MeasuredNode

_READ_BYTES = 512 << 20
_BYTES_A_THREAD = 64 << 20  # beyond the last-level cache of any processor, shared out over its cores
_SHARE_OF_MEMORY = 8


@dataclass(frozen=True, slots=True)
class BenchTeam:
    """The threads of one node, one on each core, and the node their memory comes from."""

    node: int
    memory_node: int
    cpus: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """One node's threads reading one node's memory. round_trip_ns: between their first threads; None for memory without
    CPUs, or one core."""

    reader: int
    memory: int
    read_gb_s: float
    round_trip_ns: float | None
    huge_pages: bool
    share_in_place: float | None  # of the memory read, what the kernel says is on that node


@dataclass(frozen=True, slots=True)
class NodesResult:
    """All of it. level: the instruction set that read and multiplied."""

    machine: str
    kernel: str
    level: str
    nodes: tuple[MeasuredNode, ...]
    pairs: tuple[MeasuredPair, ...]
    barrier_us: float
    barrier_across_us: float

    def to_json(self) -> dict[str, object]:
        """Return what `--out` keeps and `host.topology.measured.load_measured` reads."""
        found = asdict(self)
        return {"format": FORMAT, **found, "nodes": list(found["nodes"]), "pairs": list(found["pairs"])}


class NodeMeter(Meter, Protocol):
    """`compute.native.NativeMeter`, or a fake."""

    @property
    def huge_pages(self) -> bool:
        """Is what it reads on huge pages?"""


class NodeProbe(Protocol):
    """An instrument that measures on given CPUs: `NativeProbe`, or a fake."""

    @property
    def level(self) -> str:
        """Name of the instruction set level."""

    def meter(self, team: BenchTeam, memory: int, read_bytes: int) -> tuple[NodeMeter, float | None]:
        """A meter of these threads over memory of that node, and the share of it that really is there. HostError when
        it cannot be had."""

    def barrier_us(self, cpus: Sequence[int], groups: Sequence[Sequence[int]]) -> float:
        """Return the microseconds until all have met."""

    def round_trip_ns(self, cpu: int, other: int) -> float:
        """Return the nanoseconds until one has the answer of the other."""


def bench_teams(host: Host) -> tuple[BenchTeam, ...]:
    """A thread for each core that this process may use, by node; one team of node 0 on a host without nodes."""
    cpus = host.allowance.physical_cpus
    by_node: dict[int, list[int]] = {}
    for cpu in cpus:
        known = host.cpu_by_id.get(cpu)
        by_node.setdefault(known.node if known and known.node is not None else 0, []).append(cpu)
    teams = []
    for node, own in sorted(by_node.items()):
        caches = [known.l3 if (known := host.cpu_by_id.get(cpu)) and known.l3 is not None else -1 for cpu in own]
        nearest = (*memory_nodes(host, (node,)), node)[0]
        teams.append(BenchTeam(node, nearest, tuple(own), tuple((node, cache) for cache in caches)))
    return tuple(teams)


def memories(host: Host, teams: Sequence[BenchTeam]) -> tuple[int, ...]:
    """The nodes whose memory is read: those of the teams, and nodes that are memory only."""
    devices = {chip.memory_node for chip in host.accelerators.chips}
    lone = [n.id for n in host.nodes if not n.cpus and n.id not in devices and n.id in memory_nodes(host, (n.id,))]
    return tuple(sorted({team.memory_node for team in teams} | set(lone)))


def measure_nodes(
    host: Host, probe: NodeProbe, available: int, measuring: Callable[[str], AbstractContextManager[object]]
) -> NodesResult:
    """Every pair of nodes, then the barriers. `available`: bytes that may be taken. `measuring`: is entered around each
    measurement with its name."""
    teams = bench_teams(host)
    nodes, pairs = [], []
    for team in teams:
        for memory in memories(host, teams):
            with measuring(f"node {team.node} reads from node {memory}"):
                pair, multiply = _measure_pair(probe, teams, team, memory, available)
            pairs.append(pair)
            if memory == team.memory_node:
                nodes.append(MeasuredNode(team.node, memory, len(team.cpus), pair.read_gb_s, multiply))
    with measuring("barriers"):
        within = max(probe.barrier_us(team.cpus, team.groups) for team in teams)
        all_cpus = [cpu for team in teams for cpu in team.cpus]
        across = (
            probe.barrier_us(all_cpus, [path for team in teams for path in team.groups]) if len(teams) > 1 else within
        )
    return NodesResult(
        host.machine,
        host.kernel,
        probe.level,
        tuple(nodes),
        tuple(pairs),
        round(within, 3),
        round(max(within, across), 3),
    )


def _measure_pair(
    probe: NodeProbe, teams: Sequence[BenchTeam], team: BenchTeam, memory: int, available: int
) -> tuple[MeasuredPair, float]:
    """The pair, and what the threads multiply."""
    wanted = max(_READ_BYTES, _BYTES_A_THREAD * len(team.cpus))
    meter, share = probe.meter(team, memory, min(wanted, available // _SHARE_OF_MEMORY))
    found = take_reading(meter).ceilings
    other = _partner(teams, team, memory)
    trip = None if other is None else round(probe.round_trip_ns(team.cpus[0], other), 1)
    shown = None if share is None else round(share, 3)
    return MeasuredPair(team.node, memory, round(found.read / 1e9, 2), trip, meter.huge_pages, shown), round(
        found.int8 / 1e9, 1
    )


def _partner(teams: Sequence[BenchTeam], team: BenchTeam, memory: int) -> int | None:
    """A CPU of the node whose memory it is: another one where that is the team's own."""
    if memory == team.node:
        return team.cpus[-1] if len(team.cpus) > 1 else None
    return next((other.cpus[0] for other in teams if other.node == memory), None)
