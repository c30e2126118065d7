"""Memory that an engine or a worker may still take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from homenode.engine.binding import EngineBinding
from homenode.host.bind.base.syscalls import MPOL_BIND, Syscalls
from homenode.host.bind.memory.mempolicy_fallback import MemoryPolicy, current_policy
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.facts import FactReader
from homenode.host.topology.host import Host
from homenode.host.topology.memory import available_on
from homenode.host.topology.source import LiveSource, Source

_UNBOUNDED = 1 << 62  # bytes


def memory_budget(share: int | None, binding: EngineBinding, taken: int = 0, already_held: int = 0) -> MemoryBudget:
    """Return what may still be taken, with `already_held` bytes that are counted as taken and are to be used again. One
    of several engines keeps within its `share` of bytes (None: there is none), of which it has `taken` some: all of
    them load at once, and each would otherwise count the memory that the others are about to take.
    """
    room = available_memory(binding)
    room = replace(room, size=room.size + already_held)
    if share is None:
        return room
    return replace(room, size=min(room.size, max(0, share - taken)))


def memory_left(share: int | None, binding: EngineBinding, taken: int = 0, already_held: int = 0) -> int:
    """Bytes that a worker in this place may still take, of which it has `taken` some; `already_held`: those that others
    have left it.
    """
    return memory_budget(share, binding, taken, already_held).size


def budget_on(host: Host, binding: EngineBinding, policy: MemoryPolicy | None, share: int | None) -> MemoryBudget:
    """The same by the facts of a host, for the plan of an engine before its start; what the host does not tell has no
    bounds. `policy`: the memory policy of this process.
    """
    nodes = _bound_nodes(binding, policy)
    free = [node.free for node in host.nodes if node.id in nodes]
    bounds = [host.allowance.memory_available or None, share, None if None in free or not free else _sum(free)]
    return MemoryBudget(min((bound for bound in bounds if bound is not None), default=_UNBOUNDED), nodes)


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """`size`: bytes that the engine may still take. `nodes`: those its memory is bound to, empty when it is not."""

    size: int
    nodes: tuple[int, ...] = ()


def available_memory(
    binding: EngineBinding, kernel: Syscalls | None = None, source: Source | None = None
) -> MemoryBudget:
    """Return what is left to take for an engine in this place, or bound from outside, as by numactl or
    `homenode run`.
    """
    source = source or LiveSource()
    available = Allowance.of_process(source).memory_available
    nodes = binding.memory_nodes or _bound_nodes(binding, current_policy(kernel or Syscalls()))
    return MemoryBudget(min(available, available_on(FactReader(source), nodes)) if nodes else available, nodes)


def _bound_nodes(binding: EngineBinding, policy: MemoryPolicy | None) -> tuple[int, ...]:
    """The nodes that memory comes from in this place; empty where it may come from any."""
    if not binding.memory_nodes and policy is not None and policy.mode == MPOL_BIND:
        return policy.nodes
    return binding.memory_nodes


def _sum(sizes: Sequence[int | None]) -> int:
    return sum(size for size in sizes if size is not None)
