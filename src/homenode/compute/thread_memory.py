"""The nodes of the memory of a pool of threads: for each thread the NUMA node that its memory comes from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from homenode.host.bind.memory.residency import PlannedRange


@dataclass(frozen=True, slots=True)
class ThreadMemory:
    """`node_indices`: for each thread the index of its NUMA node in `nodes`.

    `bound`: the kernel is asked to take memory from there; otherwise it lies where a thread of the home first touches
    it, which is the same as long as the node has room. `interleaved`: KV memory comes from all nodes in turn instead of
    from those of the threads that attend to it.
    """

    node_indices: tuple[int, ...]
    nodes: tuple[int, ...]
    bound: bool = True
    interleaved: bool = False

    def planned(self, ranges: Iterable[tuple[int, int, int]]) -> tuple[PlannedRange, ...]:
        """Return what the native core says of its memory (address, bytes, home; -1: all in turn), in nodes."""
        return tuple(
            PlannedRange(at, size, self.nodes if home < 0 else (self.nodes[home],)) for at, size, home in ranges
        )
