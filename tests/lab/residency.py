"""Where the memory of a process lies, read here from what the kernel says and without the readers under test.

Two witnesses: /proc/PID/numa_maps counts the pages of every range by node (numa(7)); move_pages(2), asked without
moving anything, names the node of each page. A range whose parts are to lie on different nodes can be judged by the
second only, unless each part has a policy of its own.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from homenode.cpuset import parse_cpu_list
from homenode.host.bind.base.syscalls import Syscalls

PAGE = os.sysconf("SC_PAGE_SIZE")
_NOT_THERE = (-errno.ENOENT, -errno.EFAULT)  # a page that nobody has touched; the second by kernels before 6.2
_BATCH = 16384  # pages a call

Block = tuple[int, int]  # the address of its first byte, and how many bytes


@dataclass(frozen=True)
class MappedRange:
    """A line of numa_maps. `pages`: those present, by node, each of `page_bytes`; `file`: what it maps, empty for
    memory without a file.
    """

    start: int
    policy: str
    pages: Mapping[int, int]
    page_bytes: int
    file: str

    def bytes_on(self, node: int) -> int:
        return self.pages.get(node, 0) * self.page_bytes

    @property
    def present(self) -> int:
        """Bytes of it that lie in memory, wherever."""
        return sum(self.pages.values()) * self.page_bytes


@dataclass(frozen=True)
class PlacedMemory:
    """What numa_maps counts in ranges with a policy of their own, as an engine gives them to its weights and KV memory:
    bytes by (nodes planned, node where they are).
    """

    found: Mapping[tuple[tuple[int, ...], int], int]

    @property
    def total(self) -> int:
        return sum(self.found.values())

    @property
    def remote(self) -> int:
        """Bytes on nodes that were not planned."""
        return sum(size for (wanted, seen), size in self.found.items() if seen not in wanted)

    def on(self, node: int) -> int:
        return sum(size for (_, seen), size in self.found.items() if seen == node)


@dataclass(frozen=True)
class Residency:
    """Of memory that a plan gave homes: bytes by (planned node, node where they are). `absent`: bytes that nobody has
    touched yet.
    """

    found: Mapping[tuple[int, int], int]
    absent: int = 0

    @property
    def ratio(self) -> float:
        """The share of what is present that is at home."""
        present = sum(self.found.values())
        return sum(size for (wanted, seen), size in self.found.items() if wanted == seen) / present if present else 0.0

    @property
    def strays(self) -> dict[tuple[int, int], int]:
        """What is not at home."""
        return {pair: size for pair, size in self.found.items() if pair[0] != pair[1]}


def parse_ranges(numa_maps: str) -> list[MappedRange]:
    """The lines of a text of numa_maps, in ascending order of address."""
    found = []
    for line in numa_maps.splitlines():
        start, policy, *words = line.split(" ")
        told = dict(word.partition("=")[::2] for word in words)
        pages = {int(name[1:]): int(count) for name, count in told.items() if re.fullmatch(r"N\d+", name)}
        found.append(
            MappedRange(
                int(start, 16),
                policy,
                pages,
                1024 * int(told.get("kernelpagesize_kB", PAGE // 1024)),
                told.get("file", ""),
            )
        )
    return found


def ranges_of(pid: int) -> list[MappedRange]:
    return parse_ranges(Path(f"/proc/{pid}/numa_maps").read_text())


def bytes_by_node(ranges: Iterable[MappedRange]) -> Counter[int]:
    """Bytes of memory without a file, by node."""
    found: Counter[int] = Counter()
    for part in ranges:
        if not part.file:
            found.update({node: part.bytes_on(node) for node in part.pages})
    return found


def placed_memory(pid: int) -> PlacedMemory:
    """Of ranges that prefer a node, or are interleaved over several."""
    found: Counter[tuple[tuple[int, ...], int]] = Counter()
    for part in ranges_of(pid):
        mode, _, nodes = part.policy.partition(":")
        if mode in ("prefer", "interleave"):
            found.update({(parse_cpu_list(nodes), node): part.bytes_on(node) for node in part.pages})
    return PlacedMemory(found)


def range_at(pid: int, address: int) -> MappedRange:
    """The range that holds this address."""
    return max((part for part in ranges_of(pid) if part.start <= address), key=lambda part: part.start)


def nodes_of(pid: int, block: Block) -> list[int]:
    """The node of each page of a block, or what the kernel answers in its place: a negative errno."""
    address, size = block
    pages = range(address - address % PAGE, address + size, PAGE)
    found: list[int] = []
    for first in range(0, len(pages), _BATCH):
        found += Syscalls().move_pages(pid, pages[first : first + _BATCH], None)
    return found


def places(pid: int, address: int, size: int) -> set[int]:
    """The nodes that hold pages of a block, every one of them present."""
    return set(nodes_of(pid, (address, size)))


def prove(pid: int, plan: Mapping[int, Sequence[Block]]) -> Residency:
    """Ask for every page of the blocks that a plan puts on each node."""
    found: Counter[tuple[int, int]] = Counter()
    absent = 0
    for wanted, blocks in plan.items():
        for block in blocks:
            for node, count in Counter(nodes_of(pid, block)).items():
                if node in _NOT_THERE:
                    absent += count * PAGE
                else:
                    found[wanted, node] += count * PAGE
    return Residency(dict(found), absent)


def move(pid: int, block: Block, node: int) -> None:
    """What another tool might do, or the kernel's balancing: pages sent to `node`. They are there afterwards."""
    address, size = block
    pages = range(address, address + size, PAGE)
    Syscalls().move_pages(pid, pages, [node] * len(pages))
    assert places(pid, address, size) == {node}


def largest_private(pid: int) -> Block:
    """The block of memory without a file that holds the most, as /proc/PID/maps bounds it."""
    part = max((part for part in ranges_of(pid) if not part.file), key=lambda part: part.present)
    ends = re.search(rf"^{part.start:x}-([0-9a-f]+) ", Path(f"/proc/{pid}/maps").read_text(), re.MULTILINE)
    assert ends, f"{part.start:x} is not in /proc/{pid}/maps"
    return part.start, int(ends[1], 16) - part.start
