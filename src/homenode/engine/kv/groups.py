"""Free KV blocks of memory whose blocks lie on several NUMA nodes, in groups that lie on one node.

Where a model has fewer KV heads than nodes, blocks lie on the nodes in turn, and a chunk of 256 positions is attended
to at the node of its first block (csrc/attention/plan.cpp). As many blocks as hold such a chunk are a group:
they follow each other, the first one's number is a multiple of how many they are, and all are on one node. A sequence
whose chunks are groups reads nothing over the links between nodes.

A chunk of a sequence begins in a group that is whole, all of whose blocks are free, and goes on there. What is left of
other groups is handed out when no group is whole, or where a chunk cannot go on in its group, such as behind cached
blocks that others have gone on from: first what is left where nobody's blocks are, then where most is. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from functools import partial

from homenode.engine.kv.chunks import ChunkTable, LowestFirst
from homenode.errors import InternalError
from homenode.units import format_count


class BlockGroups:
    """The free blocks of `table`, in groups of `size`. Blocks behind the last group of this size are in none that is
    ever whole.
    """

    def __init__(self, size: int, table: ChunkTable) -> None:
        """All blocks are free."""
        self.size = size
        self._table = table
        self._num_free = [len(self._blocks_of(group)) for group in range(-(-table.num_blocks // size))]
        self._owned = [0] * len(self._num_free)  # blocks somebody refers to
        self.num_whole = self._num_free.count(size)
        # Groups with so many free blocks, whole ones last.
        self._with_free = [LowestFirst(partial(self._has_free, count)) for count in range(size + 1)]
        for group, count in enumerate(self._num_free):
            self._with_free[count].add(group)
        # Groups of which nobody refers to a block but some are cached, the longest like this first, and how many blocks
        # of those are free; the same without those of which none is.
        self._unused: OrderedDict[int, int] = OrderedDict()
        self._rests: OrderedDict[int, int] = OrderedDict()
        self.num_left = 0  # free blocks of them

    def __len__(self) -> int:
        """Blocks that can be handed out."""
        return len(self._table)

    def __iter__(self) -> Iterator[int]:
        return iter(self._table)

    def add(self, block: int) -> None:
        """Put one block back. The caller knows that it is not in the set."""
        self._table.add(block)
        self._count_free(block, 1)

    def take(self, count: int, after: int = -1, index: int = 0) -> list[int]:
        """Remove and return `count` blocks, those of a sequence from its block `index` on, before which it has block
        `after` (-1: none). InternalError when there are fewer.
        """
        if count > len(self):
            raise InternalError(
                f"{format_count(count, 'free block')} wanted, {len(self)} there", wanted=count, free=len(self)
            )
        taken: list[int] = []
        while len(taken) < count:
            behind = (index + len(taken)) % self.size
            limit = min(count - len(taken), self.size - behind)
            found = (self._beside(after, limit) if behind else []) or self._elsewhere(limit, begins=not behind)
            for block in found:
                self._table.remove(block)
            found = found or self._table.take(1)
            for block in found:
                self._count_free(block, -1)
            taken += found
            after = found[-1]
        return taken

    def num_lacking(self, count: int, index: int) -> int:
        """Return how many more groups would have to be whole for each chunk that `take` would begin to find one."""
        begun = -(-(index + count) // self.size) - -(-index // self.size)
        return begun - self.num_whole

    def oldest_unused(self, *, partly_free: bool) -> range:
        """The blocks of the group that has cached ones and nobody's for longest, if possible of one that is
        `partly_free`. Empty: there is no such group.
        """
        group = next(iter(self._rests if partly_free and self._rests else self._unused), None)
        return range(0) if group is None else self._blocks_of(group)

    def own(self, block: int) -> None:
        """Somebody refers to a block that nobody referred to."""
        group = block // self.size
        self._owned[group] += 1
        if self._owned[group] == 1:
            self._file(group)

    def disown(self, block: int) -> None:
        """Nobody refers to a block any more."""
        group = block // self.size
        self._owned[group] -= 1
        if not self._owned[group]:
            self._file(group)

    def audit(self, references: list[int]) -> None:
        """Check the counts against the references of each block. InternalError names the first group that is wrong."""
        free = set(self._table)
        for group, counted in enumerate(zip(self._owned, self._num_free, strict=True)):
            blocks = self._blocks_of(group)
            found = (sum(references[block] > 0 for block in blocks), len(free.intersection(blocks)))
            if counted != found:
                raise InternalError(f"group {group} of KV blocks: {counted} in use and free counted, {found} found")
        if self.num_whole != self._num_free.count(self.size):
            raise InternalError(f"{format_count(self.num_whole, 'whole group')} of KV blocks counted")

    def _has_free(self, count: int, group: int) -> bool:
        return self._num_free[group] == count

    def _count_free(self, block: int, more: int) -> None:
        group = block // self.size
        self.num_whole -= self._num_free[group] == self.size
        self._num_free[group] += more
        self.num_whole += self._num_free[group] == self.size
        self._with_free[self._num_free[group]].add(group)
        self._file(group)

    def _file(self, group: int) -> None:
        """A block of a group was freed, taken, or is the first or last one that somebody refers to."""
        free = self._num_free[group]
        unused = not self._owned[group] and free < len(self._blocks_of(group)) == self.size
        self.num_left -= self._rests.get(group, 0)
        for groups, belongs in ((self._unused, unused), (self._rests, unused and free > 0)):
            if belongs:
                groups[group] = free
            else:
                groups.pop(group, None)
        self.num_left += self._rests.get(group, 0)

    def _blocks_of(self, group: int) -> range:
        first = group * self.size
        return range(first, min(first + self.size, self._table.num_blocks))

    def _beside(self, after: int, limit: int) -> list[int]:
        """Up to `limit` free blocks of the group that block `after` is in, those behind it first, then downwards."""
        if not 0 <= after < self._table.num_blocks:
            return []  # another engine's
        blocks = self._blocks_of(after // self.size)
        return self._usable((*range(after + 1, blocks.stop), *reversed(range(blocks.start, after))))[:limit]

    def _elsewhere(self, limit: int, *, begins: bool) -> list[int]:
        """Up to `limit` free blocks of one group: where a chunk begins of one that is whole rather than of one in which
        nobody's blocks are, else the other way round. Where there is neither of the one with most of them, from its
        end, as somebody may go on at its beginning.
        """
        whole, rest = self._with_free[self.size].lowest(), next(iter(self._rests), None)
        for group in (whole, rest) if begins else (rest, whole):
            if group is not None and (found := self._usable(self._blocks_of(group))):
                return found[:limit]
        for groups in reversed(self._with_free[1 : self.size]):
            group = groups.lowest()
            if group is not None and (found := self._usable(reversed(self._blocks_of(group)))):
                return found[:limit]
        return []

    def _usable(self, blocks: Iterable[int]) -> list[int]:
        return [block for block in blocks if self._table.has(block)]
