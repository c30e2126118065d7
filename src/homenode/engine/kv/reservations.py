"""At a receiver: the blocks that KV from another engine comes into. All that a delivery needs are taken at once, or none."""

from __future__ import annotations

import math

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import KvImport, Sequence
from homenode.transfer.seam import Offered
from homenode.units import format_count


class KvReservations:
    """Finds room for what comes, with room for one token more. What the prefix cache holds is used, and is not sent again."""

    def __init__(self, residents: KvAllocator) -> None:
        self._residents = residents

    def reserve(self, offer: Offered, kept_free: int) -> KvImport | str:
        """Blocks for an offer, before its request comes, or why there are none. `kept_free`: blocks that are to stay free for others."""
        residents, hits = self._residents, self._hits(offer)
        in_place = _num_in_place(offer, len(hits))
        blocks = residents.take(hits, offer.tokens + 1, residents.blocks_for(offer.tokens + 2) + kept_free, in_place)
        if blocks is None:
            wanted = residents.blocks_for(offer.tokens + 1) - len(hits) - in_place
            return f"{format_count(wanted, 'KV block')} more are wanted, and {kept_free} are to stay free for those who run and wait"
        held = len(hits) * residents.block_size
        return KvImport(offer, blocks, held, arrived=held)

    def take(self, delivery: KvImport, sequence: Sequence, spare: int) -> bool:
        """Give blocks to a delivery without reservation, whose request is admitted now. False: there are not enough.

        Cached blocks are used as far as they end where a page ends, since no page is brought in part, or into a block that others read.
        """
        residents, offer = self._residents, delivery.offer
        hits = residents.cache.lookup(sequence.chain, sequence.tokens)
        unit = math.lcm(offer.page_tokens, residents.block_size)
        cached = len(hits) * residents.block_size
        delivery.held = cached if cached >= offer.tokens else cached // unit * unit
        hits = hits[: delivery.held // residents.block_size]
        room = residents.blocks_for(offer.tokens + 2) + spare
        blocks = residents.take(hits, offer.tokens + 1, room, _num_in_place(offer, len(hits)))
        if blocks is None:
            return False
        delivery.blocks, delivery.arrived = blocks, delivery.held
        return True

    def fill_holes(self, delivery: KvImport, kept_free: int) -> bool:
        """No more comes: what was to be read in place and did not arrive gets blocks, to be computed. False: there are not enough."""
        holes = [index for index, block in enumerate(delivery.blocks) if block < 0]
        if holes and len(holes) + kept_free > self._residents.pool.num_free:
            return False
        for index, block in zip(holes, self._residents.pool.allocate(len(holes)), strict=True):
            delivery.blocks[index] = block
        return True

    def told(self, delivery: KvImport) -> list[int]:
        """The blocks that the agent is told of: those of what comes, without the room for more."""
        return delivery.blocks[: self._residents.blocks_for(delivery.offer.tokens)]

    def _hits(self, offer: Offered) -> list[int]:
        """Pages that are in the prefix cache. Found by their identity, which is a block's hash where pages are as large as blocks."""
        residents = self._residents
        return residents.pool.find(offer.identities) if offer.page_tokens == residents.block_size else []


def _num_in_place(offer: Offered, held: int) -> int:
    """Pages of which no copy is needed, since they are full and can be read where they are: nothing is ever written there."""
    return max(0, offer.tokens // offer.page_tokens - held) if offer.in_place else 0
