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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import partial

from homenode.errors import InternalError
from homenode.units import format_count


class Presence(IntEnum):
    """State of a chunk: whether its pages are there, or are to come before anything that is computed from now on."""

    absent = 0
    present = 1


@dataclass(frozen=True, slots=True)
class PageChange:
    """The pages of blocks `first` .. `past` - 1 are to be taken, or can be given back."""

    first: int
    past: int
    presence: Presence


class LowestFirst:
    """Numbers of which something holds, the lowest first. Those of which it holds no more are dropped when they are
    met, which the adding has paid for.
    """

    def __init__(self, holds: Callable[[int], bool], numbers: Iterable[int] = ()) -> None:
        """`numbers`: ascending."""
        self._holds = holds
        self._heap = list(numbers)
        self._queued = set(self._heap)

    def add(self, number: int) -> None:
        """Let it hold of this number now."""
        if number not in self._queued and self._holds(number):
            self._queued.add(number)
            heapq.heappush(self._heap, number)

    def lowest(self) -> int | None:
        """The lowest number of which it holds; None: there is none."""
        while self._heap and not self._holds(self._heap[0]):
            self._queued.discard(heapq.heappop(self._heap))
        return self._heap[0] if self._heap else None


class ChunkTable:
    """The free ones of blocks 0 .. num_blocks - 1, in chunks of `chunk_blocks`. `there`: all is present, and stays;
    otherwise nothing is at first.
    """

    def __init__(self, num_blocks: int, chunk_blocks: int, *, there: bool = False) -> None:
        self.chunk_blocks = chunk_blocks
        self.num_blocks = num_blocks
        self.num_chunks = -(-num_blocks // chunk_blocks)
        self.credit: int | None = None  # chunks that may still be taken; None: as many as there are
        self.withheld = False  # absent chunks are not handed out, since the machine had no memory for one...
        self.lacking = 0  # ...of so many that were wanted
        self.changes: list[PageChange] = []  # in order; whoever carries them out empties the list
        self.now = 0.0  # time of what happens, in seconds
        self.num_present = self.num_chunks if there else 0  # chunks
        self.num_changes = 0  # of what is present, and of what is idle
        initial = Presence.present if there else Presence.absent
        self._presence = [initial] * self.num_chunks
        self._masks = [
            (1 << min(chunk_blocks, num_blocks - chunk * chunk_blocks)) - 1 for chunk in range(self.num_chunks)
        ]  # of the free blocks of each chunk
        self._num_free = {presence: num_blocks if presence is initial else 0 for presence in Presence}
        self._owned = [0] * self.num_chunks  # blocks somebody refers to
        self._idle: OrderedDict[int, float] = OrderedDict()  # present chunks without any, and since when
        self._with_free = {
            presence: LowestFirst(
                partial(self._has_free, presence), range(self.num_chunks if presence is initial else 0)
            )
            for presence in Presence
        }

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
        self._with_free[self._presence[chunk]].add(chunk)

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
            while len(taken) < count and (chunk := self._with_free[presence].lowest()) is not None:
                self._take_from(chunk, count, taken)
        return taken

    def has(self, block: int) -> bool:
        """Return whether this block can be handed out."""
        chunk, bit = divmod(block, self.chunk_blocks)
        return bool(self._masks[chunk] >> bit & 1) and (not self.withheld or self._presence[chunk] is Presence.present)

    def remove(self, block: int) -> None:
        """Hand out this block. The caller knows that it is in the set."""
        chunk, bit = divmod(block, self.chunk_blocks)
        self._masks[chunk] &= ~(1 << bit)
        self._num_free[self._presence[chunk]] -= 1

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
        """Return whether so many blocks can be handed out and secured, wherever they lie."""
        lacking = count - self._num_free[Presence.present]
        return lacking <= 0 or (not self.withheld and (self.credit is None or lacking <= self.credit))

    def take_ahead(self, ready: int, limit: int) -> None:
        """Have the lowest absent chunks taken until `ready` free blocks are present, `limit` chunks at once, as far as
        the machine has memory."""
        while limit > 0 and self._num_free[Presence.present] < ready and self._num_free[Presence.absent]:
            if self.withheld or self.credit == 0:
                return
            chunk = self._with_free[Presence.absent].lowest()
            assert chunk is not None
            self._bring(chunk)
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
        """Return whether a chunk is present for nothing."""
        return any(map(self.is_empty, self._idle))

    def is_empty(self, chunk: int) -> bool:
        """Return whether all its blocks are free, so that nothing in it is worth keeping."""
        return self._masks[chunk].bit_count() == len(self.blocks_of(chunk))

    def blocks_of(self, chunk: int) -> range:
        """Its blocks, free or not."""
        first = chunk * self.chunk_blocks
        return range(first, min(first + self.chunk_blocks, self.num_blocks))

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
                    f"chunk {chunk} of the KV memory: {format_count(self._owned[chunk], 'block')} in use counted, "
                    f"{owned} found"
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
        self._with_free[presence].add(chunk)
        blocks, last = self.blocks_of(chunk), self.changes[-1] if self.changes else None
        if last is not None and last.presence is presence and last.past == blocks.start:
            self.changes[-1] = PageChange(last.first, blocks.stop, presence)
        else:
            self.changes.append(PageChange(blocks.start, blocks.stop, presence))

    def _has_free(self, presence: Presence, chunk: int) -> bool:
        return self._presence[chunk] is presence and self._masks[chunk] > 0

    def _take_behind(self, after: int, count: int, taken: list[int]) -> None:
        for block in range(after + 1, self.num_blocks):
            chunk, bit = divmod(block, self.chunk_blocks)
            if len(taken) == count or self._presence[chunk] is Presence.absent or not self._masks[chunk] >> bit & 1:
                return
            self.remove(block)
            taken.append(block)

    def _take_from(self, chunk: int, count: int, taken: list[int]) -> None:
        while len(taken) < count and (mask := self._masks[chunk]):
            block = chunk * self.chunk_blocks + (mask & -mask).bit_length() - 1
            self.remove(block)
            taken.append(block)
