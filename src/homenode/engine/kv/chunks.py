"""Free KV blocks of memory that is taken when it is used: which part of it is present, and which of its blocks nobody
needs.

The memory is cut into chunks of some neighbouring blocks, about a huge page large. A chunk is `absent`, when only its
addresses are reserved, or `present`. Blocks of present chunks are handed out first, and the lowest first, so that
what is high becomes empty and can be given back. A block of an absent chunk can be owned before its pages are there;
they are taken by `secure` when the block is about to be used, as long as the machine has memory to give: `credit`
chunks, as somebody has looked up who can read the machine. Pure; `changes` is what is to be done about the pages.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from homenode.errors import InternalError
from homenode.units import format_count


class Presence(IntEnum):
    """Of a chunk: whether its pages are there, or are to come before anything that is computed from now on."""

    absent = 0
    present = 1


@dataclass(frozen=True, slots=True)
class PageChange:
    """The pages of blocks `first` .. `past` - 1 are to be taken, or can be given back."""

    first: int
    past: int
    presence: Presence


class ChunkTable:
    """The free ones of blocks 0 .. num_blocks - 1, in chunks of `chunk_blocks`. Nothing is present at first."""

    def __init__(self, num_blocks: int, chunk_blocks: int) -> None:
        self.chunk_blocks = chunk_blocks
        self._num_blocks = num_blocks
        self.num_chunks = -(-num_blocks // chunk_blocks)
        self.credit: int | None = None  # chunks that may still be taken; None: as many as there are
        self.withheld = False  # absent chunks are not handed out, since the machine had no memory for one...
        self.lacking = 0  # ...of so many that were wanted
        self.changes: list[PageChange] = []  # in order; whoever carries them out empties the list
        self.now = 0.0  # time of what happens, in seconds
        self.num_present = 0  # chunks
        self.num_changes = 0  # of what is present, and of what is idle
        self._presence = [Presence.absent] * self.num_chunks
        self._masks = [
            (1 << min(chunk_blocks, num_blocks - chunk * chunk_blocks)) - 1 for chunk in range(self.num_chunks)
        ]  # of the free blocks of each chunk
        self._num_free = {Presence.absent: num_blocks, Presence.present: 0}
        self._owned = [0] * self.num_chunks  # blocks somebody refers to
        self._idle: OrderedDict[int, float] = OrderedDict()  # present chunks without any, and since when
        # Chunks that may have free blocks, the lowest first; entries that are outdated are dropped when they are met.
        self._heaps: dict[Presence, list[int]] = {
            Presence.absent: list(range(self.num_chunks)),
            Presence.present: [],
        }
        self._queued = {presence: set(heap) for presence, heap in self._heaps.items()}

    # Free blocks

    def __len__(self) -> int:
        """Blocks that can be handed out."""
        there = self._num_free[Presence.present]
        return there if self.withheld else there + self._num_free[Presence.absent]

    def __iter__(self) -> Iterator[int]:
        """All free blocks, those that are withheld included."""
        for chunk, mask in enumerate(self._masks):
            yield from (chunk * self.chunk_blocks + bit for bit in range(self.chunk_blocks) if mask >> bit & 1)

    @property
    def num_free(self) -> int:
        """All free blocks, those that are withheld included."""
        return sum(self._num_free.values())

    @property
    def num_ready(self) -> int:
        """Free blocks whose pages are there."""
        return self._num_free[Presence.present]

    def add(self, block: int) -> None:
        """Put one block back. The caller knows that it is not in the set."""
        chunk, bit = divmod(block, self.chunk_blocks)
        self._masks[chunk] |= 1 << bit
        self._num_free[self._presence[chunk]] += 1
        self._queue(chunk)

    def take(self, count: int, after: int = -1) -> list[int]:
        """Remove and return `count` blocks: those behind `after` as long as they are free and present, then the
        lowest present ones, then the lowest of the others. InternalError when there are fewer than `count`."""
        if count > len(self):
            raise InternalError(
                f"{format_count(count, 'free block')} wanted, {len(self)} there", wanted=count, free=len(self)
            )
        taken: list[int] = []
        if after >= 0:
            self._take_behind(after, count, taken)
        for presence in (Presence.present, Presence.absent):
            while len(taken) < count and self._num_free[presence]:
                self._take_from(self._lowest(presence), count, taken)
        return taken

    # Whose blocks are in use

    def own(self, block: int) -> None:
        """Somebody refers to a block that nobody referred to."""
        chunk = block // self.chunk_blocks
        self._owned[chunk] += 1
        if self._owned[chunk] == 1:
            self._idle.pop(chunk, None)
            self.num_changes += 1

    def disown(self, block: int) -> None:
        """Nobody refers to a block any more."""
        chunk = block // self.chunk_blocks
        self._owned[chunk] -= 1
        if not self._owned[chunk] and self._presence[chunk] is Presence.present:
            self._idle[chunk] = self.now
            self.num_changes += 1

    # Growth

    def missing(self, blocks: Iterable[int]) -> list[int]:
        """The absent chunks that these blocks are in, ascending."""
        chunks = {block // self.chunk_blocks for block in blocks}
        return sorted(chunk for chunk in chunks if self._presence[chunk] is Presence.absent)

    def secure(self, blocks: Iterable[int]) -> bool:
        """Have the pages of these blocks taken. False when the machine has not enough for all of them: what it has is
        taken, for whoever gets these blocks next, and absent chunks are withheld from now on."""
        wanted = self.missing(blocks)
        affordable = len(wanted) if self.credit is None else min(len(wanted), self.credit)
        for chunk in wanted[:affordable]:
            self._bring(chunk)
        if affordable == len(wanted):
            return True
        self.withheld, self.lacking = True, len(wanted)
        return False

    def affords(self, count: int) -> bool:
        """Whether so many blocks can be handed out and secured, wherever they lie."""
        lacking = count - self._num_free[Presence.present]
        return lacking <= 0 or (not self.withheld and (self.credit is None or lacking <= self.credit))

    def take_ahead(self, ready: int, limit: int) -> None:
        """Have the lowest absent chunks taken until `ready` free blocks are present, `limit` chunks at once, as far as
        the machine has memory."""
        while limit > 0 and self._num_free[Presence.present] < ready and self._num_free[Presence.absent]:
            if self.withheld or self.credit == 0:
                return
            self._bring(self._lowest(Presence.absent))
            limit -= 1

    # Release

    def idle_since(self, latest: float) -> list[int]:
        """Present chunks in which nobody's blocks have been since `latest` or before, the longest idle first."""
        found = []
        for chunk, since in self._idle.items():
            if since > latest:
                break
            found.append(chunk)
        return found

    @property
    def idle_from(self) -> float | None:
        """Since when the chunk that is idle longest is; None: none is."""
        return next(iter(self._idle.values()), None)

    def has_idle_empty(self) -> bool:
        """Whether a chunk is present for nothing."""
        return any(map(self.is_empty, self._idle))

    def is_empty(self, chunk: int) -> bool:
        """Whether all its blocks are free, so that nothing in it is worth keeping."""
        return self._masks[chunk].bit_count() == len(self.blocks_of(chunk))

    def blocks_of(self, chunk: int) -> range:
        """Its blocks, free or not."""
        first = chunk * self.chunk_blocks
        return range(first, min(first + self.chunk_blocks, self._num_blocks))

    def give_back(self, chunk: int) -> None:
        """Its pages are no longer needed. InternalError for a chunk that is not present and empty."""
        if self._presence[chunk] is not Presence.present or not self.is_empty(chunk):
            raise InternalError(f"chunk {chunk} of the KV memory is in use, or not there: it cannot be given back")
        del self._idle[chunk]
        self._move(chunk, Presence.absent)

    def audit(self, references: list[int]) -> None:
        """Check the counts against the references of each block. InternalError names the first chunk that is wrong.
        O(blocks)."""
        for chunk in range(self.num_chunks):
            owned = sum(references[block] > 0 for block in self.blocks_of(chunk))
            present = self._presence[chunk] is Presence.present
            if owned != self._owned[chunk] or (chunk in self._idle) != (present and not owned):
                raise InternalError(
                    f"chunk {chunk} of the KV memory: {format_count(self._owned[chunk], 'block')} in use counted, {owned} found"
                )
        for presence, count in self._num_free.items():
            found = sum(m.bit_count() for m, p in zip(self._masks, self._presence, strict=True) if p is presence)
            if found != count:
                raise InternalError(
                    f"{format_count(count, 'free KV block')} counted, {presence.name}, but {found} found"
                )

    def _bring(self, chunk: int) -> None:
        if self.credit is not None:
            self.credit -= 1
        self._move(chunk, Presence.present)
        if not self._owned[chunk]:
            self._idle[chunk] = self.now

    def _move(self, chunk: int, presence: Presence) -> None:
        free = self._masks[chunk].bit_count()
        self._num_free[self._presence[chunk]] -= free
        self._num_free[presence] += free
        self._presence[chunk] = presence
        self.num_changes += 1
        self.num_present += 1 if presence is Presence.present else -1
        self._queue(chunk)
        blocks, last = self.blocks_of(chunk), self.changes[-1] if self.changes else None
        if last is not None and last.presence is presence and last.past == blocks.start:
            self.changes[-1] = PageChange(last.first, blocks.stop, presence)
        else:
            self.changes.append(PageChange(blocks.start, blocks.stop, presence))

    def _queue(self, chunk: int) -> None:
        presence = self._presence[chunk]
        if self._masks[chunk] and chunk not in self._queued[presence]:
            self._queued[presence].add(chunk)
            heapq.heappush(self._heaps[presence], chunk)

    def _lowest(self, presence: Presence) -> int:
        """The lowest chunk with free blocks. There is one."""
        heap = self._heaps[presence]
        while self._presence[heap[0]] is not presence or not self._masks[heap[0]]:
            self._queued[presence].discard(heapq.heappop(heap))
        return heap[0]

    def _take_behind(self, after: int, count: int, taken: list[int]) -> None:
        for block in range(after + 1, self._num_blocks):
            chunk, bit = divmod(block, self.chunk_blocks)
            if len(taken) == count or self._presence[chunk] is Presence.absent or not self._masks[chunk] >> bit & 1:
                return
            self._take_bit(chunk, bit, taken)

    def _take_from(self, chunk: int, count: int, taken: list[int]) -> None:
        while len(taken) < count and self._masks[chunk]:
            self._take_bit(chunk, (self._masks[chunk] & -self._masks[chunk]).bit_length() - 1, taken)

    def _take_bit(self, chunk: int, bit: int, taken: list[int]) -> None:
        self._masks[chunk] &= ~(1 << bit)
        self._num_free[self._presence[chunk]] -= 1
        taken.append(chunk * self.chunk_blocks + bit)
