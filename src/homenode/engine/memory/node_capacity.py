"""A check that weights and KV memory fit the nodes they are to lie on, before a byte is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from homenode.compute.ops import Backend, KvGeometry
from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.engine.memory.numa import team_memory
from homenode.errors import CapacityError
from homenode.host.plan.numa.demand import Decision
from homenode.host.plan.variables import reserve_cpus
from homenode.host.topology.host import Host
from homenode.model.weights.layout import WeightLayout
from homenode.model.weights.node_placement import WeightNodes
from homenode.model.weights.numa_layout import numa_layout, packed_group_bytes
from homenode.units import format_bytes

_CHUNK_KEYS = 256  # csrc/kernels/kernels.h: positions that one node attends to


@dataclass(frozen=True, slots=True)
class KvCapacity:
    """`size`: most bytes of KV memory, all nodes together, so that no node's part exceeds what it has left. `node` is
    the first that would: of its `left` bytes beside the weights it gives the part `share` of all KV memory.
    """

    size: int
    node: int
    left: int
    share: float

    def explain(self, error: CapacityError) -> CapacityError:
        """The error with the node that is short of memory."""
        part = (
            f"NUMA node {self.node} has {format_bytes(self.left)} left beside its weights, for {self.share:.0%} of "
            "the KV memory"
        )
        return CapacityError(f"{error.message}; {part}", param=error.param, **error.facts)


def weight_nodes_of(
    config: EngineConfig,
    host: Host,
    binding: EngineBinding,
    layout: WeightLayout,
    backend: Backend,
    number: int | None = None,
    owners: Mapping[str, int] = MappingProxyType({}),
) -> WeightNodes | None:
    """Return where weights lie under --numa; None without. `number`: which of several engines
    it is for. `owners`: the engines that keep what several have in common, by the
    matrices' names. Raises PlacementError where a node has no room for its part, UserError for patterns of tensors that
    match none.
    """
    if binding.numa is None:
        return None
    reserve = reserve_cpus(config.placement.reserve_cpus, host.variables, cpu_workers=True)
    first = host.cpu_by_id.get(binding.team[0])
    home = (first.node,) if binding.numa == "local" and first is not None and first.node is not None else ()
    decided = Decision(binding.numa, binding.numa_why, home)
    demand = config.placement.demand(config.compute.threads, reserve)
    replica = number if binding.numa == "replicate" else None
    return numa_layout(layout, host, demand, lambda _: decided, packed_group_bytes(backend), owners, replica).weights


def kv_capacity(weight_nodes: WeightNodes | None, binding: EngineBinding, geometry: KvGeometry) -> KvCapacity | None:
    """Return what the nodes leave for KV memory. None where one node holds everything, whose memory is counted as a
    whole, or nothing is known of them.

    It does not see buffers and the rest of the process, some tens of MiB.
    """
    if weight_nodes is None or binding.numa == "replicate" or len(set(binding.thread_memory)) < 2:
        return None
    shares: dict[int, float] = {}
    for shape, layers in geometry.shapes.items():
        part = len(layers) * shape.token_bytes(geometry.dtype) * geometry.block_size / geometry.block_bytes
        for node, share in kv_shares(binding, shape.kv_heads).items():
            shares[node] = shares.get(node, 0.0) + part * share
    capacities = {node: capacity for node in shares if (capacity := weight_nodes.room.get(node)) is not None}
    left = {node: max(0, capacity - weight_nodes.nodes[node]) for node, capacity in capacities.items()}
    found = [KvCapacity(int(left[node] / shares[node]), node, left[node], shares[node]) for node in left]
    return min(found, key=lambda capacity: capacity.size, default=None)


def kv_shares(binding: EngineBinding, kv_heads: int) -> Mapping[int, float]:
    """The part of KV memory of layers alike on each node that has some: whole heads, in proportion to threads
    (csrc/kv/cache.cpp); pages in turn where they are interleaved, or where nodes are more than heads.
    """
    nodes = tuple(dict.fromkeys(binding.thread_memory))
    if binding.numa == "interleave" or kv_heads < len(nodes):
        return dict.fromkeys(nodes, 1 / len(nodes))
    threads, past, shares = Counter(binding.thread_memory), 0, {}
    counted = 0
    for node in nodes:
        counted += threads[node]
        end = kv_heads * counted // len(binding.thread_memory)
        if end > past:
            shares[node] = (end - past) / kv_heads
        past = end
    return shares


def blocks_together(binding: EngineBinding, host: Host, geometry: KvGeometry) -> int:
    """Return how many neighbouring blocks lie on one node of a worker and hold what one node attends to
    (csrc/kv/cache.cpp). 1 where blocks do not lie on nodes in turn, or one is as large as that.
    """
    memory = team_memory(binding, host)
    if memory is None or memory.interleaved or tuple(sorted(memory.node_indices)) != memory.node_indices:
        return 1
    in_turn = any(shape.kv_heads < len(memory.nodes) for shape in geometry.shapes)
    return _CHUNK_KEYS // geometry.block_size if in_turn and not _CHUNK_KEYS % geometry.block_size else 1
