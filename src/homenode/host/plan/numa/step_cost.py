"""The seconds of one step of an engine over several nodes, from what it reads, multiplies and waits for. Pure
arithmetic.

A thread goes through its rows in order. Rows in its own node's memory come at that memory's bandwidth, others at what
the way there allows, one after the other; reading and multiplying overlap. A memory serves all who read from it with
its own bandwidth. Who is ready waits for the slowest: at every barrier, and over several nodes besides, as no thread
takes work from another node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from homenode.host.plan.numa.machine_speed import MachineSpeed, NodeSpeed


@dataclass(frozen=True, slots=True)
class EngineKind:
    """The shares that a kind of engine reaches of what the machine can do, and how its threads meet.

    reads, links, multiplies: shares of read bandwidth, of bandwidth between nodes, and of multiplications for many
    tokens. alone: the share of multiplications when a row is unpacked for one token only. straggling: how much longer
    than its own work a step takes because the slowest of several nodes is waited for. handover_us: until the
    activations of one token begin to arrive from other nodes, in microseconds for each layer.
    """

    name: str
    reads: float
    links: float
    multiplies: float
    alone: float
    straggling: float
    handover_us: float


# The engine of this package: shares it reaches on one node (docs/measurements/one-engine.md), and three figures that
# only several nodes can show and that nobody has measured: `links` and `straggling` are those fitted to other engines
# (docs/numa.md), `handover_us` supposes five times a layer at which the first line of a row has to come across in 0.4
# us.
OWN = EngineKind("homenode", reads=0.85, links=0.7, multiplies=0.55, alone=0.4, straggling=0.2, handover_us=2.0)


@dataclass(frozen=True, slots=True)
class Spread:
    """The division of who does what. work: share of the rows by node. reads: share of all weight bytes by (reading
    node, node of the memory). Both add up to 1.
    """

    work: Mapping[int, float]
    reads: Mapping[tuple[int, int], float]


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step: bytes of weights and of keys and values read, operations, tokens, layers, bytes of activations that
    every node needs, barriers."""

    bytes: float
    operations: float
    tokens: int
    layers: int
    exchanged: float
    barriers: float


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds. read, remote: of the slowest node, from its own memory and from others'; multiply: of the slowest node.
    These overlap.

    exchange: fetching activations of other nodes. waiting: for the slowest of several nodes. barriers: meeting, when
    all are ready. total: the step.
    """

    read: float
    remote: float
    multiply: float
    exchange: float
    waiting: float
    barriers: float
    total: float


def on_one(nodes: Sequence[NodeSpeed], memory: int) -> Spread:
    """Threads everywhere, all weights in one node's memory: where a single thread touched them first."""
    work = _by_threads(nodes)
    return Spread(work, {(node, memory): share for node, share in work.items()})


def at_home(nodes: Sequence[NodeSpeed]) -> Spread:
    """Each node's threads read their own memory only: rows cut by node, a copy for each node, or one node alone."""
    work = _by_threads(nodes)
    return Spread(work, {(node.node, node.memory): work[node.node] for node in nodes})


def round_robin(nodes: Sequence[NodeSpeed]) -> Spread:
    """Pages in turn on all memories, or placed by threads that are not the ones that read them."""
    work = _by_threads(nodes)
    memories = sorted({node.memory for node in nodes})
    return Spread(work, {(node, memory): share / len(memories) for node, share in work.items() for memory in memories})


def step_time(machine: MachineSpeed, spread: Spread, load: StepWork, kind: EngineKind) -> StepTime:
    """The step on these nodes. ValueError for a node that `machine` does not have."""
    speeds = {node.node: node for node in machine.nodes}
    if missing := spread.work.keys() - speeds.keys():
        raise ValueError(f"no speed of node {sorted(missing)}")
    workers = [speeds[node] for node in spread.work]
    local = {n.node: _read(machine, spread, load, kind, n, own=True) for n in workers}
    remote = {n.node: _read(machine, spread, load, kind, n, own=False) for n in workers}
    multiply = {
        n.node: load.operations
        * spread.work[n.node]
        / (n.int8_gops * 1e9 * _share_of_multiplications(kind, load.tokens))
        for n in workers
    }
    busy = max(max(local[node] + remote[node], multiply[node]) for node in spread.work)
    busy = max(busy, _served(machine, spread, load, kind))
    across = len(workers) > 1
    waiting = busy * kind.straggling if across else 0.0
    exchange = max(_exchange(machine, spread, load, kind, n) for n in workers) if across else 0.0
    barriers = load.barriers * (machine.barrier_across_us if across else machine.barrier_us) / 1e6
    slowest = max(local, key=lambda node: local[node] + remote[node])
    return StepTime(
        local[slowest],
        remote[slowest],
        max(multiply.values()),
        exchange,
        waiting,
        barriers,
        busy + waiting + exchange + barriers,
    )


def _by_threads(nodes: Sequence[NodeSpeed]) -> dict[int, float]:
    total = sum(node.threads for node in nodes)
    return {node.node: node.threads / total for node in nodes}


def _read(machine: MachineSpeed, spread: Spread, load: StepWork, kind: EngineKind, node: NodeSpeed, own: bool) -> float:
    """Seconds in which the node's threads read what they read of their own memory, or of all others."""
    share = kind.reads if own else kind.links
    return sum(
        part * load.bytes / (machine.bandwidth(node, memory) * 1e9 * share)
        for (reader, memory), part in spread.reads.items()
        if reader == node.node and (memory == node.memory) == own
    )


def _served(machine: MachineSpeed, spread: Spread, load: StepWork, kind: EngineKind) -> float:
    """Seconds in which the busiest memory delivers what is read from it: it gives as much as the fastest node that
    calls it its own can take."""
    wanted: dict[int, float] = {}
    for (_, memory), part in spread.reads.items():
        wanted[memory] = wanted.get(memory, 0.0) + part * load.bytes
    given = {memory: max((n.read_gb_s for n in machine.nodes if n.memory == memory), default=0.0) for memory in wanted}
    return max((wanted[memory] / (given[memory] * 1e9 * kind.reads) for memory in wanted if given[memory]), default=0.0)


def _share_of_multiplications(kind: EngineKind, tokens: int) -> float:
    """Unpacking a row costs the same for one token and for many, so the share rises from `alone` to `multiplies`."""
    unpacking = max(0.0, 1 / kind.alone - 1 / kind.multiplies)
    return 1 / (1 / kind.multiplies + unpacking / max(tokens, 1))


def _exchange(machine: MachineSpeed, spread: Spread, load: StepWork, kind: EngineKind, node: NodeSpeed) -> float:
    """Seconds in which the node gets the activations that others computed: until they begin to arrive, and while they
    come."""
    foreign = [
        machine.bandwidth(node, n.memory) for n in machine.nodes if n.node in spread.work and n.node != node.node
    ]
    fetched = load.exchanged * (1 - spread.work[node.node])
    return load.tokens * load.layers * kind.handover_us / 1e6 + (
        fetched / (min(foreign) * 1e9 * kind.links) if foreign else 0.0
    )
