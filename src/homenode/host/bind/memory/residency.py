"""On which NUMA node memory of a process really lies, page by page, against where it was to lie.

Source: move_pages(2) without target nodes, which only tells. A page that was never touched answers ENOENT or, on older
kernels, EFAULT: it lies nowhere yet and does not count.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from homenode.host.bind.base.syscalls import Syscalls

PAGE = 4096
_BATCH = 1 << 16  # pages asked for in one call: answers of a quarter of a GiB


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """`size` bytes at `address` of a process, and the nodes any of which is right for them."""

    address: int
    size: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class NodeResidency:
    """Bytes on a node: of the memory planned for `node` (-1: for several nodes in turn) the bytes that are present, and
    of them those on the nodes planned.
    """

    node: int
    present: int
    local: int

    @property
    def ratio(self) -> float:
        """The share on the planned nodes, 0 to 1; 1 where nothing is present."""
        return self.local / self.present if self.present else 1.0


def node_residencies(
    ranges: Sequence[PlannedRange], calls: Syscalls, most_pages: int | None = None, pid: int = 0
) -> tuple[NodeResidency, ...] | None:
    """One line for each planned node, ascending, of process `pid` (0: this one). None where the kernel does not tell,
    as in many containers.

    `most_pages`: about how many pages to ask for, at even distances and drawn anew each time; each stands for its
    neighbours. None: all.
    """
    pages = sum(part.size for part in ranges) // PAGE
    stride = 1 if most_pages is None else max(1, -(-pages // most_pages))
    present: Counter[int] = Counter()
    local: Counter[int] = Counter()
    for part in ranges:
        node = part.nodes[0] if len(part.nodes) == 1 else -1
        try:
            seen = pages_by_node(part, calls, stride, pid)
        except OSError:
            return None
        present[node] += seen.total() * stride * PAGE
        local[node] += sum(count for at, count in seen.items() if at in part.nodes) * stride * PAGE
    return tuple(NodeResidency(node, present[node], local[node]) for node in sorted(present))


def pages_by_node(part: PlannedRange, calls: Syscalls, stride: int = 1, pid: int = 0) -> Counter[int]:
    """Return how many of every `stride`-th page of the range are on each node. OSError where the kernel
    does not tell.
    """
    first_page = part.address // PAGE + random.randrange(stride)
    pages: Sequence[int] = range(first_page * PAGE, part.address + part.size, stride * PAGE)
    seen: Counter[int] = Counter()
    for first in range(0, len(pages), _BATCH):
        seen.update(node for node in calls.move_pages(pid, pages[first : first + _BATCH], None) if node >= 0)
    return seen
