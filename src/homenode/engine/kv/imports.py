"""At a receiver: KV that comes from another engine, the blocks it comes into, and the requests it is for.

A delivery owns its blocks from the moment they are named to the agent until the ticket's request takes them over, or until nobody writes to
them any more. Only what has arrived, and so was verified, is ever taken over.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.reservations import KvReservations
from homenode.engine.kv.sequence import BlockAllocation, KvImport, Sequence
from homenode.transfer.seam import Claimed, Fetch, Offered, ReservationFailed, Reserved, Stopped, ToAgent, Unused


class KvImports:
    """All deliveries by ticket. What it wants the agent to be told is added to `messages`."""

    def __init__(self, residents: KvAllocator, messages: list[ToAgent]) -> None:
        self._residents = residents
        self._messages = messages
        self._rooms = KvReservations(residents)
        self._of: dict[str, KvImport] = {}
        self.ready: list[
            Sequence
        ] = []  # whose delivery is done, in order; they hold their blocks and wait for their turn
        self.fetching: set[int] = set()  # requests that were admitted and wait for their KV
        self.released: list[Sequence] = []  # requests that waited for another one's delivery, which is over
        self._quarantine: dict[str, list[int]] = {}  # blocks that somebody out of reach may write to, by ticket

    def find(self, ticket: str) -> KvImport | None:
        """The delivery of a ticket, if it is known and not given up."""
        delivery = self._of.get(ticket)
        return None if delivery is None or delivery.stopped else delivery

    def of(self, ticket: str) -> KvImport | None:
        """The delivery of a ticket, if it is known at all."""
        return self._of.get(ticket)

    def is_for(self, delivery: KvImport, sequence: Sequence) -> bool:
        """Whether a request's own tokens, all but the last, are those that the offer was made for."""
        offer, residents = delivery.offer, self._residents
        if len(sequence.tokens) != offer.tokens + 1:
            return False
        same = offer.page_tokens == residents.block_size
        chain = sequence.chain if same else residents.cache.chain(sequence.request.cache_salt, offer.page_tokens)
        return chain.identities(sequence.tokens, offer.tokens) == offer.identities

    # Offers

    def offer(self, offer: Offered, refusal: str, kept_free: int) -> None:
        """Remember what will come, and take blocks for it if they are wanted now: all, with room for one token more, or none.

        `refusal`: why nothing is taken in, if so. `kept_free`: blocks that are to stay free for others.
        """
        if not refusal and (offer.ticket in self._of or offer.ticket in self._quarantine):
            refusal = "the ticket is known already"
        if not refusal and offer.reserve:
            refusal = self._reserve(offer, kept_free)
        elif not refusal:
            self._of[offer.ticket] = KvImport(offer)
        if refusal and offer.reserve:
            self._messages.append(ReservationFailed(offer.ticket, self._residents.pool.num_free, refusal))

    def _reserve(self, offer: Offered, kept_free: int) -> str:
        """Take blocks for an offer and say so, or return why not."""
        delivery = self._rooms.reserve(offer, kept_free)
        if isinstance(delivery, str):
            return delivery
        self._of[offer.ticket] = delivery
        self._messages.append(
            Reserved(offer.ticket, self._rooms.told(delivery), delivery.held // self._residents.block_size)
        )
        return ""

    # Requests

    def bind(self, delivery: KvImport, sequence: Sequence) -> None:
        """The request has come that it is for."""
        delivery.sequence, sequence.delivery = sequence, delivery
        if delivery.blocks:
            self._fetch(delivery)
        if delivery.blocks and delivery.done:
            self.make_ready(sequence)

    def follow(self, delivery: KvImport, sequence: Sequence) -> bool:
        """A further request of the ticket, with the same tokens, waits until the first has them and finds them in the cache, if there is one."""
        if not self._residents.cache.enabled or sequence.scoring or not self.is_for(delivery, sequence):
            return False
        delivery.others.append(sequence)
        return True

    def make_ready(self, sequence: Sequence) -> None:
        """Its delivery is done: it may start as soon as its turn comes."""
        self.fetching.discard(sequence.id)
        bisect.insort(self.ready, sequence, key=lambda s: s.order)

    def fetch(self, sequence: Sequence, spare: int) -> bool:
        """Have the KV of a request without reservation brought, into blocks taken now. False: there are not enough."""
        delivery = sequence.delivery
        assert delivery is not None and not delivery.blocks
        if not self._rooms.take(delivery, sequence, spare):
            return False
        if delivery.done:
            self.make_ready(sequence)
        else:
            self.fetching.add(sequence.id)
            self._fetch(delivery)
        return True

    def _fetch(self, delivery: KvImport) -> None:
        offer = delivery.offer
        self._messages.append(Fetch(offer.ticket, self._rooms.told(delivery), delivery.held // offer.page_tokens))

    def proposal(self, sequence: Sequence) -> BlockAllocation:
        """The stay that a ready request would begin now: on what arrived, or on what the cache holds if that is more by now."""
        delivery, residents = sequence.delivery, self._residents
        assert delivery is not None and delivery.done
        if delivery.arrived < delivery.offer.tokens:
            hits = residents.cache.lookup(sequence.chain, sequence.tokens)
            if len(hits) * residents.block_size > delivery.arrived:
                residents.pool.acquire(hits)
                residents.pool.release(residents.pool.own(delivery.blocks[: len(hits)]))
                delivery.blocks[: len(hits)] = hits
                delivery.arrived = len(hits) * residents.block_size
        return BlockAllocation(
            seq=-1,
            blocks=delivery.blocks,
            scheduled=delivery.arrived,
            computed=delivery.arrived,
            goal=sequence.goal,
            score_base=sequence.num_prompt,
            placed=delivery.offer.ticket if delivery.placed else "",
        )

    def take_over(self, sequence: Sequence, residency: BlockAllocation) -> None:
        """The ready request begins this stay, which owns the blocks from now on. Full blocks can be found by others."""
        delivery = sequence.delivery
        assert delivery is not None
        self._residents.settle_in(sequence, residency)
        self._residents.publish(sequence, residency)
        delivery.placed = False  # from now on it is the stay's to say
        self._claim(delivery, delivery.arrived)

    # Ends

    def placed(self, ticket: str, first: int, blocks: list[int]) -> None:
        """These pages of a ticket are read where they are. One that is not known any more has no use for them."""
        delivery = self._of.get(ticket)
        if delivery is None or not delivery.blocks:
            self._messages.append(Unused(ticket))
            return
        delivery.placed = True
        delivery.blocks[first : first + len(blocks)] = blocks

    def fill_holes(self, delivery: KvImport, kept_free: int) -> bool:
        """No more comes: what was to be read in place and did not arrive gets blocks, to be computed. False: there are not enough."""
        return self._rooms.fill_holes(delivery, kept_free)

    def arrived(self, delivery: KvImport, tokens: int) -> None:
        """The first `tokens` positions lie verified in its blocks."""
        if delivery.blocks:
            delivery.arrived = max(delivery.arrived, min(tokens, delivery.offer.tokens))

    def drop(self, delivery: KvImport) -> None:
        """Forget one that nobody writes to, and free its blocks."""
        self._release(delivery)
        self._forget(delivery)

    def _release(self, delivery: KvImport) -> None:
        self._residents.pool.release(self._residents.pool.own(delivery.blocks))
        if delivery.placed:
            self._residents.unused.append(delivery.offer.ticket)

    def give_up(self, delivery: KvImport) -> None:
        """It is of no use any more. Its blocks are free at once if nobody writes to them, else when the agent says so."""
        self._part(delivery)
        if delivery.done:
            self._release(delivery)
            self._claim(delivery, 0)
            return
        self._messages.append(Stopped(delivery.offer.ticket))
        delivery.stopped = True
        if not delivery.blocks:
            self._forget(delivery)

    def quarantine(self, delivery: KvImport) -> None:
        """Keep the blocks that did not arrive whole from any use. The others are given back; with a request, they can be found in the cache."""
        residents, sequence = self._residents, delivery.sequence
        full = delivery.arrived // residents.block_size
        if sequence is not None:
            residents.cache.publish(sequence.chain, sequence.tokens, delivery.blocks, 0, delivery.arrived)
        residents.pool.release(delivery.blocks[:full])
        self._quarantine[delivery.offer.ticket] = delivery.blocks[full:]
        self._claim(delivery, full * residents.block_size if sequence is not None else 0)

    def end_quarantine(self, ticket: str) -> None:
        """Nobody writes to a ticket's blocks any more, if they were in quarantine."""
        self._residents.pool.release(self._quarantine.pop(ticket, []))

    @property
    def num_quarantined(self) -> int:
        """Blocks that are out of use, perhaps for ever."""
        return sum(len(blocks) for blocks in self._quarantine.values())

    def give_way(self) -> Sequence | None:
        """Free the blocks of the ready request that is last in order; what arrived of it can still be found in the cache until the blocks are
        used. Returns the request, which has to go the ordinary way. None: nobody is ready."""
        if not self.ready:
            return None
        sequence = self.ready[-1]
        delivery = sequence.delivery
        assert delivery is not None
        if not delivery.placed:
            self._residents.cache.publish(sequence.chain, sequence.tokens, delivery.blocks, 0, delivery.arrived)
        self.give_up(delivery)
        return sequence

    def give_up_newest(self) -> bool:
        """Give up the newest reservation that no request has come for, unless blocks are on their way back already. True: they are free now."""
        if any(delivery.stopped for delivery in self._of.values()):
            return False
        newest = next((d for d in reversed(self._of.values()) if d.blocks and d.sequence is None), None)
        if newest is None:
            return False
        self.give_up(newest)
        return newest.done

    def unclaimed(self) -> list[KvImport]:
        """Those that no request has come for, and that were not given up."""
        return [d for d in self._of.values() if d.sequence is None and not d.stopped]

    def claimed(self) -> list[KvImport]:
        """Those whose request waits for them."""
        return [d for d in self._of.values() if d.sequence is not None]

    def tables(self) -> Iterator[list[int]]:
        """The blocks of each delivery."""
        yield from (delivery.blocks for delivery in self._of.values())
        yield from self._quarantine.values()

    def hold_blocks(self) -> bool:
        """Whether any delivery has blocks."""
        return any(delivery.blocks for delivery in self._of.values())

    def await_news(self) -> bool:
        """Whether the agent will sooner or later say that blocks are free, or that KV has come."""
        return any(delivery.blocks and not (delivery.done and delivery.sequence) for delivery in self._of.values())

    def _claim(self, delivery: KvImport, tokens: int) -> None:
        self._messages.append(Claimed(delivery.offer.ticket, tokens))
        self._forget(delivery)

    def _forget(self, delivery: KvImport) -> None:
        del self._of[delivery.offer.ticket]
        self._part(delivery)

    def _part(self, delivery: KvImport) -> None:
        """Its requests have nothing to do with it any more."""
        self.released += delivery.others
        delivery.others = []
        sequence, delivery.sequence = delivery.sequence, None
        if sequence is not None:
            sequence.delivery = None
            self.fetching.discard(sequence.id)
            if sequence in self.ready:
                self.ready.remove(sequence)
