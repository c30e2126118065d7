"""The memory that the machine can still give to the KV memory of an engine, read anew each time it is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from homenode.engine.binding import EngineBinding
from homenode.host.topology.facts import FactReader
from homenode.host.topology.headroom import Headroom as Headroom
from homenode.host.topology.headroom import read_headroom
from homenode.host.topology.source import LiveSource, Source

_NONE_AT_ALL = Headroom(0, "this process was refused the memory to read what the machine has")


def headroom_of(parts: Sequence[Sequence[int]] = (), source: Source | None = None) -> Callable[[], Headroom]:
    """Reads it for memory that comes in equal parts from these groups of nodes, empty: from anywhere. It takes some
    tens of microseconds for each control group. Where there is no memory even for that, nothing is to be taken: who
    asks is the engine's loop, which goes on."""
    files = source or LiveSource()

    def headroom() -> Headroom:
        try:
            return read_headroom(FactReader(files), parts)
        except MemoryError:
            return _NONE_AT_ALL

    return headroom


def memory_parts(binding: EngineBinding) -> tuple[tuple[int, ...], ...]:
    """The nodes that the parts of an engine's KV memory come from, about as much from each; empty: any of the
    machine's.
    """
    if binding.thread_memory:
        return tuple((node,) for node in sorted(set(binding.thread_memory)))
    return (tuple(binding.memory_nodes),) if binding.memory_nodes else ()
