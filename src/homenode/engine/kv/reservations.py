"""Blocks that others come into from a source. All that an import needs are taken at once, or none."""

from __future__ import annotations

import math

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.block_source import BlockOffer, BlockSource
from homenode.engine.kv.sequence import KvImport, Sequence
from homenode.units import format_count


class KvReservations:
    """Finds room for what comes, with room for one token more. What the prefix cache holds is used, and is not sent
    again.
    """

    def __init__(self, allocator: KvAllocator) -> None:
        self._allocator = allocator

    def reserve(self, source: BlockSource, offer: BlockOffer, kept_free: int) -> KvImport | str:
        """Blocks for an offer, before its request comes, or why there are none. `kept_free`: blocks that are to stay
        free for others.
        """
        allocator, hits = self._allocator, self._hits(offer)
        in_place = self._num_in_place(offer, len(hits))
        blocks = allocator.take(hits, offer.tokens + 1, allocator.blocks_for(offer.tokens + 2) + kept_free, in_place)
        if blocks is None:
            wanted = allocator.blocks_for(offer.tokens + 1) - len(hits) - in_place
            return (
                f"{format_count(wanted, 'KV block')} more are wanted, and {kept_free} are to stay free for those "
                "who run and wait"
            )
        cached = len(hits) * allocator.block_size
        return KvImport(source, offer, blocks, cached, arrived=cached)

    def take(self, kv_import: KvImport, sequence: Sequence, spare: int) -> bool:
        """Give blocks to an import without reservation, whose request is admitted now. False: there are not enough.

        Cached blocks are used as far as they end where a page ends, since no page is brought in part, or into a block
        that others read.
        """
        allocator, offer = self._allocator, kv_import.offer
        hits = allocator.cache.lookup(sequence.chain, sequence.tokens)
        unit = math.lcm(offer.page_tokens, allocator.block_size)
        cached = len(hits) * allocator.block_size
        kv_import.cached = cached if cached >= offer.tokens else cached // unit * unit
        hits = hits[: kv_import.cached // allocator.block_size]
        positions = max(offer.tokens + 1, len(sequence.tokens))
        room = allocator.blocks_for(positions + 1) + spare
        blocks = allocator.take(hits, positions, room, self._num_in_place(offer, len(hits)))
        if blocks is None:
            return False
        kv_import.blocks, kv_import.arrived = blocks, kv_import.cached
        return True

    def fill_holes(self, kv_import: KvImport, kept_free: int) -> bool:
        """No more comes: what was to be read in place and did not arrive gets blocks, to be computed. False: there are
        not enough.
        """
        holes = [index for index, block in enumerate(kv_import.blocks) if block < 0]
        if holes and len(holes) + kept_free > self._allocator.pool.num_free:
            return False
        for index in holes:
            before = kv_import.blocks[index - 1] if index else -1
            kv_import.blocks[index] = self._allocator.pool.allocate(1, before, index)[0]
        return True

    def incoming_blocks(self, kv_import: KvImport) -> list[int]:
        """The blocks that the source is told of: those of what comes, without the room for more."""
        return kv_import.blocks[: self._allocator.blocks_for(kv_import.offer.tokens)]

    def _hits(self, offer: BlockOffer) -> list[int]:
        """Pages that are in the prefix cache. Found by their identity, which is a block's hash where pages are as large
        as blocks.
        """
        allocator = self._allocator
        return allocator.pool.find(offer.identities) if offer.page_tokens == allocator.block_size else []

    def _num_in_place(self, offer: BlockOffer, cached: int) -> int:
        """Pages of which no copy is needed, since they are full and can be read where they are: nothing is ever written
        there. None where blocks are handed over whole.
        """
        if not offer.in_place or self._allocator.whole_pages:
            return 0
        return max(0, offer.tokens // offer.page_tokens - cached)
