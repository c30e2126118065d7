"""The owners of KV blocks: reference counts, free runs, and the order in which cached blocks are given up.

A block is in exactly one of three places:

    owned   one or more sequences refer to it; it may also be cached, that is, found under the hash of its content
    cached  nobody refers to it, but its content can still be found; given up least recently used first
    free    nobody refers to it and nothing in it is worth keeping

Free blocks are handed out before cached ones, those that are present before those whose pages are still to be taken
(see `chunks`); where blocks lie on several NUMA nodes, cached ones also to keep a sequence's chunks of positions on one
node each (see `groups`). A sequence's blocks come back last block first, so that of equally old blocks the end of a
prompt is given up before its beginning, which more prompts share.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from homenode.engine.kv.chunks import ChunkTable
from homenode.engine.kv.groups import BlockGroups
from homenode.engine.kv.runs import FreeRuns
from homenode.engine.kv.states import StatePool
from homenode.errors import InternalError
from homenode.units import format_count

if TYPE_CHECKING:
    from homenode.engine.kv.block_journal import BlockJournal

# Where blocks lie in groups, and for so many cached blocks one is free in groups that only the cache uses: of these
# groups some are given up rather than others...
_MANY_LEFT = 32
_MOST_LEFT = 2  # ...or what is free of them is handed out


class BlockPool:
    """Blocks 0 .. num_blocks - 1 of the paged KV memory. All operations cost O(log num_blocks) a block."""

    def __init__(self, num_blocks: int, chunks: ChunkTable | None = None, group_blocks: int = 1) -> None:
        """`chunks`: of memory that is taken when it is used. None: all of it is there. `group_blocks`: so many
        neighbours lie on one NUMA node; 1: it is not known where blocks lie.
        """
        self.num_blocks = num_blocks
        self.chunks = chunks
        self._references = [0] * num_blocks
        self._groups: BlockGroups | None = None
        self._free: FreeRuns | ChunkTable | BlockGroups = FreeRuns(num_blocks) if chunks is None else chunks
        if group_blocks > 1:
            table = ChunkTable(num_blocks, group_blocks, there=True) if chunks is None else chunks
            self._free = self._groups = BlockGroups(group_blocks, table)
        self._unused: OrderedDict[int, None] = OrderedDict()  # cached blocks nobody refers to, oldest first
        self._digest_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        self.states: StatePool | None = None  # whose snapshots go with the blocks at their ends
        self.journal: BlockJournal | None = None  # of what can be found; None: nobody reads one

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now: free ones and cached ones nobody refers to."""
        return len(self._free) + len(self._unused)

    @property
    def num_empty(self) -> int:
        """Blocks that can be handed out without giving up what is cached or taking memory from the machine."""
        return len(self._free) if self.chunks is None else min(len(self._free), self.chunks.num_ready)

    @property
    def num_owned(self) -> int:
        """Blocks somebody refers to."""
        free = len(self._free) if self.chunks is None else self.chunks.num_free
        return self.num_blocks - free - len(self._unused)

    @property
    def num_cached(self) -> int:
        """Blocks whose content can be found, owned or not."""
        return len(self._digest_of)

    def allocate(self, count: int, after: int = -1, index: int = 0) -> list[int]:
        """`count` blocks with one reference each, adjacent to block `after` and to each other as far as the free runs
        allow. They are those of a sequence from its block `index` on.

        Gives up the least recently used cached blocks if free ones are short. InternalError when there are too few: ask
        `num_free` first.
        """
        if count > self.num_free:
            raise InternalError(
                f"{format_count(count, 'KV block')} wanted, {self.num_free} available",
                wanted=count,
                available=self.num_free,
            )
        if self._groups is not None:
            self._free_groups(self._groups, self._groups.num_lacking(count, index))
        while len(self._free) < count:
            self._give_up(next(iter(self._unused)))
        blocks = self._free.take(count, after) if self._groups is None else self._groups.take(count, after, index)
        for block in blocks:
            self._references[block] = 1
            self._count_owned(block)
        return blocks

    def acquire(self, blocks: Iterable[int]) -> None:
        """One more reference to each of these owned or cached blocks. InternalError for a free block: its content is
        gone.
        """
        for block in blocks:
            if self._references[block] == 0:
                if block not in self._unused:
                    raise InternalError(f"KV block {block} is free, it cannot be shared", block=block)
                del self._unused[block]
                self._count_owned(block)
            self._references[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """One reference less to each block of a sequence, last block first. InternalError if a block has no owner or
        does not exist.
        """
        for block in reversed(blocks):
            if not 0 <= block < self.num_blocks:
                raise InternalError(
                    f"KV block {block} given back, but blocks are numbered 0 to {self.num_blocks - 1}", block=block
                )
            if self._references[block] == 0:
                raise InternalError(f"KV block {block} given back, but nobody owns it: it was freed twice", block=block)
            self._references[block] -= 1
            if self._references[block]:
                continue
            if block in self._digest_of:
                self._unused[block] = None
            else:
                self._free.add(block)
            for table in (self.chunks, self._groups):
                if table is not None:
                    table.disown(block)

    def publish(self, block: int, digest: bytes) -> bool:
        """Let the content of an owned block be found under `digest`. False if another block is found there already."""
        if self._references[block] == 0:
            raise InternalError(f"KV block {block} has no owner, its content cannot be published", block=block)
        if digest in self._block_of or block in self._digest_of:
            return False
        self._block_of[digest] = block
        self._digest_of[block] = digest
        if self.journal is not None:
            self.journal.note_published(digest)
        return True

    def find(self, digests: Iterable[bytes]) -> list[int]:
        """Blocks of the longest beginning of `digests` that is cached. Nothing is acquired."""
        found = []
        for digest in digests:
            block = self._block_of.get(digest)
            if block is None:
                break
            found.append(block)
        return found

    @property
    def digests(self) -> Collection[bytes]:
        """Return those that content can be found under."""
        return self._block_of.keys()

    def own(self, blocks: Iterable[int]) -> list[int]:
        """Return those of a table that are of this pool; the others are another engine's, or not known yet."""
        return [block for block in blocks if 0 <= block < self.num_blocks]

    def num_unused(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks nobody refers to."""
        return sum(self._references[block] == 0 for block in blocks)

    def num_exclusive(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks have a single owner, and so would become available if it let go."""
        return sum(self._references[block] == 1 for block in blocks)

    def forget_all(self) -> None:
        """Empty the cache: no content can be found any more. Owned blocks stay owned."""
        for block in self._unused:
            self._free.add(block)
        self._unused.clear()
        self._digest_of.clear()
        self._block_of.clear()
        if self.journal is not None:
            self.journal.note_all_gone()
        if self.states is not None:
            self.states.forget_all()

    def secure(self, blocks: Iterable[int]) -> bool:
        """Have the pages of these blocks taken if they are not there. False: the machine has no memory for
        all of them.
        """
        return self.chunks is None or self.chunks.secure(blocks)

    def is_present(self, blocks: Iterable[int]) -> bool:
        """The pages of all these blocks are there."""
        return self.chunks is None or not self.chunks.missing(blocks)

    def affords(self, count: int) -> bool:
        """Return whether so many blocks could be handed out with pages, without giving up what is cached."""
        return self.chunks is None or self.chunks.affords(count)

    def empty_chunk(self, chunk: int) -> int:
        """Forget what is cached in a chunk that nobody's blocks are in, so that it can be given back. The number of
        blocks that were.
        """
        assert self.chunks is not None
        cached = [block for block in self.chunks.blocks_of(chunk) if block in self._unused]
        for block in cached:
            self._give_up(block)
        return len(cached)

    def audit(self, owners: Iterable[Sequence[int]]) -> None:
        """Check every block against the block tables of all owners. InternalError names the first one that is in the
        wrong place. O(n).
        """
        expected = Counter(block for table in owners for block in table)
        self._check_references(expected)
        free = Counter(self._free)
        for block in range(self.num_blocks):
            places = (expected[block] > 0) + free[block] + (block in self._unused)
            if places != 1:
                raise InternalError(
                    f"KV block {block} is in {format_count(places, 'place')} of owned, free and cached", block=block
                )
            if block in self._unused and block not in self._digest_of:
                raise InternalError(f"KV block {block} is kept for its content, but cannot be found", block=block)
        if {block: digest for digest, block in self._block_of.items()} != self._digest_of:
            raise InternalError("the KV cache index and the blocks disagree")
        if free and self._digest_of.keys() & free.keys():
            raise InternalError("a free KV block can still be found in the cache")
        if self.chunks is not None and (missing := self.chunks.missing(self._digest_of)):
            raise InternalError(f"blocks of chunk {missing[0]} can be found in the cache, but the chunk is not there")

    def audit_references(self, owners: Iterable[Sequence[int]]) -> None:
        """Check how often each block is owned, and what chunks and groups of blocks count of that; not where blocks are
        that nobody owns. InternalError names the first one that is counted wrongly. O(n).
        """
        self._check_references(Counter(block for table in owners for block in table))

    def _check_references(self, expected: Counter[int]) -> None:
        for block in range(self.num_blocks):
            if self._references[block] != expected[block]:
                raise InternalError(
                    f"KV block {block}: {self._references[block]} references counted, {expected[block]} owners",
                    block=block,
                )
        for table in (self._groups, self.chunks):
            if table is not None:
                table.audit(self._references)

    def _count_owned(self, block: int) -> None:
        for table in (self.chunks, self._groups):
            if table is not None:
                table.own(block)

    def _free_groups(self, groups: BlockGroups, lacking: int) -> None:
        """Give up what is cached in groups that nobody's blocks are in, the longest like this first, until `lacking`
        more are whole.
        """
        while lacking > 0 and groups.num_left * _MOST_LEFT <= len(self._unused):
            many = groups.num_left * _MANY_LEFT > len(self._unused)
            unused = groups.oldest_unused(partly_free=many)
            for block in unused:
                if block in self._unused:
                    self._give_up(block)
            lacking = lacking - 1 if unused else 0

    def _give_up(self, block: int) -> None:
        """Free a cached block that nobody refers to."""
        del self._unused[block]
        self._forget(block)
        self._free.add(block)

    def _forget(self, block: int) -> None:
        digest = self._digest_of.pop(block)
        del self._block_of[digest]
        if self.journal is not None:
            self.journal.note_gone(digest)
        if self.states is not None:
            self.states.forget(digest)
