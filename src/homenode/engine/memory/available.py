"""How much memory an engine or a worker may still take."""

from __future__ import annotations

from dataclasses import dataclass, replace

from homenode.engine.binding import EngineBinding
from homenode.engine.config import EngineConfig
from homenode.host.binding.mempolicy_fallback import current_policy
from homenode.host.binding.syscalls import MPOL_BIND, Syscalls
from homenode.host.topology.allowance import Allowance
from homenode.host.topology.facts import FactReader
from homenode.host.topology.memory import available_on
from homenode.host.topology.source import LiveSource, Source


def memory_budget(config: EngineConfig, binding: EngineBinding, taken: int = 0, already_held: int = 0) -> MemoryBudget:
    """What may still be taken, with `already_held` bytes that are counted as taken and are to be used again. One of
    several engines keeps within its share, of which it has `taken` some: all of them load at once, and each would
    otherwise count the memory that the others are about to take.
    """
    room = available_memory(binding)
    room = replace(room, size=room.size + already_held)
    if config.replica is None or config.replica.memory is None:
        return room
    return replace(room, size=min(room.size, max(0, config.replica.memory - taken)))


def memory_left(config: EngineConfig, binding: EngineBinding, taken: int = 0, already_held: int = 0) -> int:
    """Bytes that a worker in this place may still take, of which it has `taken` some; `already_held`: those that others
    have left it.
    """
    return memory_budget(config, binding, taken, already_held).size


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """`size`: bytes that the engine may still take. `nodes`: those its memory is bound to, empty when it is not."""

    size: int
    nodes: tuple[int, ...] = ()


def available_memory(
    binding: EngineBinding, kernel: Syscalls | None = None, source: Source | None = None
) -> MemoryBudget:
    """What is left to take for an engine in this place, or bound from outside, as by numactl or `homenode run`."""
    source = source or LiveSource()
    available = Allowance.of_process(source).memory_available
    nodes = binding.memory_nodes
    if not nodes and (policy := current_policy(kernel or Syscalls())) is not None and policy.mode == MPOL_BIND:
        nodes = policy.nodes
    return MemoryBudget(min(available, available_on(FactReader(source), nodes)) if nodes else available, nodes)
