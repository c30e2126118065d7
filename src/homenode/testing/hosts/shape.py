"""The figures of a made-up host, and which core lies where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from homenode.units import format_count

MOST_CPUS = 16384
MOST_NODES = 1024
MOST_DEVICES = 64
NUMBERINGS = ("split", "paired", "round")
GPU_MAKERS = ("nvidia", "amd")
NPU_FAMILIES = ("A2", "A3", "310P", "950")
_MOST_MEMORY = 1 << 50


@dataclass(frozen=True, slots=True)
class SyntheticCore:
    """A physical core: its CPUs (also those that are offline) and where it lies.

    `place` counts the cores; `node` is None without NUMA. `l3` and `cluster` are equal for cores that share one, None
    where none is shown.
    """

    place: int
    cpus: tuple[int, ...]
    socket: int
    node: int | None
    l3: int | None
    cluster: int | None
    little: bool


@dataclass(frozen=True)
class Shape:
    """The figures that a one-line host says; see `synthetic`. Raises ValueError when the figures do not go together."""

    sockets: int = 1
    nodes: int | None = None
    cores: int = 0
    smt: int = 1
    little: int = 0
    numbering: str = "split"
    l3: int | None = None
    cluster: int = 0
    memory: int = 16 << 30
    memoryless: int = 0
    cpuless: int = 0
    ids: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    allowed: tuple[int, ...] | None = None
    cpuset: tuple[int, ...] | None = None
    mems: tuple[int, ...] | None = None
    quota: float | None = None
    gpus: tuple[int, str] = (0, "nvidia")
    npus: tuple[int, str] = (0, "A2")
    machine: str = "x86_64"

    def __post_init__(self) -> None:
        for faults in (self._count_faults, self._node_faults, self._limit_faults):
            for fault, there in faults():
                if there:
                    raise ValueError(fault)

    def _count_faults(self) -> Iterator[tuple[str, bool]]:
        nodes = self.cpu_node_count
        yield "it needs cores: say how many with 64c", not self.cores
        yield "it needs a socket and a thread per core at least", not self.sockets or not self.smt
        yield (
            f"it has {format_count(self.cpu_count, 'CPU')}, at most {MOST_CPUS} are possible",
            self.cpu_count > MOST_CPUS,
        )
        yield (
            f"it has {format_count(nodes + self.cpuless, 'node')}, at most {MOST_NODES} are possible",
            nodes + self.cpuless > MOST_NODES,
        )
        yield (
            f"{format_count(self.cores, 'core is', 'cores are')} too few for {format_count(self.sockets, 'socket')} "
            f"and {format_count(nodes, 'node')}",
            self.cores < max(self.sockets, nodes),
        )
        yield (
            f"{format_count(nodes, 'node')} and {format_count(self.sockets, 'socket')} do not divide",
            bool(nodes and nodes % self.sockets and self.sockets % nodes),
        )
        yield (
            f"at most {MOST_DEVICES} accelerators of a kind are possible",
            max(self.gpus[0], self.npus[0]) > MOST_DEVICES,
        )
        yield (
            f"chips of the family {self.npus[1]} come in pairs",
            self.npus[1] in ("A3", "310P") and self.npus[0] % 2 == 1,
        )

    def _node_faults(self) -> Iterator[tuple[str, bool]]:
        nodes = self.cpu_node_count
        yield (
            "memoryless=, cpuless= and ids= need nodes: 0n has none",
            not nodes and bool(self.cpuless or self.memoryless or self.ids),
        )
        yield (
            f"memoryless={self.memoryless}, but there are {format_count(nodes, 'node')} with CPUs",
            self.memoryless > nodes,
        )
        yield "memoryless= leaves no node with memory", bool(nodes) and self.memoryless == nodes + self.cpuless
        yield (
            f"ids= names {format_count(len(self.ids), 'node')}, there are {nodes + self.cpuless}",
            bool(self.ids) and len(self.ids) != nodes + self.cpuless,
        )
        yield "ids= names a node twice", len(set(self.ids)) != len(self.ids)
        yield f"ids= goes up to {MOST_NODES - 1}", max(self.ids, default=0) >= MOST_NODES
        yield (
            f"mem= goes up to {_MOST_MEMORY >> 40} TiB, by whole KiB",
            self.memory > _MOST_MEMORY or bool(self.memory % 1024),
        )

    def _limit_faults(self) -> Iterator[tuple[str, bool]]:
        yield "offline= names CPUs that it does not have", max(self.offline, default=0) >= self.cpu_count
        yield "one CPU must stay online", not self.online
        yield "allowed= must name CPUs that it has, one of them online", not self._possible(self.allowed)
        yield "cpuset= must name CPUs that it has, one of them online", not self._possible(self.cpuset)
        yield (
            "mems= must name nodes that it has",
            self.mems is not None and (not self.mems or not set(self.mems) <= set(self.node_ids)),
        )

    def _possible(self, limit: tuple[int, ...] | None) -> bool:
        return limit is None or (max(limit, default=0) < self.cpu_count and not self.online.isdisjoint(limit))

    @property
    def cpu_count(self) -> int:
        """All logical CPUs, also those that are offline."""
        return (self.cores - self.little) * self.smt + self.little

    @property
    def cpu_node_count(self) -> int:
        """Nodes with CPUs."""
        return self.sockets if self.nodes is None else self.nodes

    @property
    def node_ids(self) -> tuple[int, ...]:
        """Numbers of the nodes: those with CPUs, then those without."""
        return self.ids or tuple(range(self.cpu_node_count + self.cpuless))

    @cached_property
    def online(self) -> frozenset[int]:
        """Logical CPUs that are not switched off."""
        return frozenset(range(self.cpu_count)).difference(self.offline)

    @cached_property
    def layout(self) -> tuple[SyntheticCore, ...]:
        """All cores in order of their place."""
        pieces = max(self.cpu_node_count, self.sockets)  # each lies on one node and one socket
        sizes = [self.cores // pieces + (piece < self.cores % pieces) for piece in range(pieces)]
        numbers = self._cpu_numbers([piece for piece, size in enumerate(sizes) for _ in range(size)])
        cores: list[SyntheticCore] = []
        for piece, size in enumerate(sizes):
            node = self.node_ids[piece * self.cpu_node_count // pieces] if self.cpu_node_count else None
            for inside in range(size):
                place = len(cores)
                l3 = piece if self.l3 is None else place - inside % self.l3 if self.l3 else None
                cluster = place - inside % self.cluster if self.cluster else None
                little = place >= self.cores - self.little
                cores.append(
                    SyntheticCore(place, numbers[place], piece * self.sockets // pieces, node, l3, cluster, little)
                )
        return tuple(cores)

    def _cpu_numbers(self, node_of_core: Sequence[int]) -> list[tuple[int, ...]]:
        """The CPUs of every core, by place."""
        threads = [self.smt if place < self.cores - self.little else 1 for place in range(self.cores)]
        order = list(range(self.cores))
        if self.numbering == "round":
            turn: dict[int, int] = {}
            rank = []
            for piece in node_of_core:
                rank.append(turn.get(piece, 0))
                turn[piece] = rank[-1] + 1
            order.sort(key=lambda place: (rank[place], node_of_core[place]))
        slots = [(place, thread) for place in order for thread in range(threads[place])]
        if self.numbering != "paired":
            slots = [(place, thread) for thread in range(self.smt) for place in order if thread < threads[place]]
        numbers: list[list[int]] = [[] for _ in range(self.cores)]
        for cpu, (place, _) in enumerate(slots):
            numbers[place].append(cpu)
        return [tuple(cpus) for cpus in numbers]
