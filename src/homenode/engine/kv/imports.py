"""Blocks that come in from a source, those they come into, and the requests they are for.

An import owns its blocks from the moment they are named to the source until its request takes them over, or
until nobody writes to them any more. Only what has arrived, and so was verified, is ever taken over.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.block_source import BlockOffer, BlockSource
from homenode.engine.kv.reservations import KvReservations
from homenode.engine.kv.sequence import BlockAllocation, KvImport, Sequence
from homenode.engine.kv.states import SlotAllocation


class KvImports:
    """All imports by key, which is the ticket of a request that has one."""

    def __init__(self, allocator: KvAllocator) -> None:
        self._allocator = allocator
        self._reservations = KvReservations(allocator)
        self.by_key: dict[str, KvImport] = {}
        # Whose import is done, in order; they hold their blocks and wait for their turn.
        self.ready: list[Sequence] = []
        self.fetching: set[int] = set()  # requests that were admitted and wait for their KV
        self.released: list[Sequence] = []  # requests that waited for another one's import, which is over
        self.quarantined: dict[str, list[int]] = {}  # blocks that somebody out of reach may write to, by key

    def find(self, key: str) -> KvImport | None:
        """The import of a key, if it is known and not given up."""
        kv_import = self.by_key.get(key)
        return None if kv_import is None or kv_import.stopped else kv_import

    def of(self, key: str) -> KvImport | None:
        """The import of a key, if it is known at all."""
        return self.by_key.get(key)

    def is_for(self, kv_import: KvImport, sequence: Sequence) -> bool:
        """Return whether a request's own tokens, all but the last, are those that the offer was made for."""
        offer, allocator, positions = kv_import.offer, self._allocator, len(sequence.tokens) - 1
        if allocator.handed_over(positions) != offer.tokens:
            return False
        same = offer.page_tokens == allocator.block_size
        asked = sequence.request
        chain = sequence.chain if same else allocator.cache.chain(asked.kv_scope, offer.page_tokens, asked.rows)
        return chain.identities(sequence.tokens, positions, allocator.state_pages) == offer.identities

    # Offers

    def offer(self, source: BlockSource, offer: BlockOffer, refusal: str, kept_free: int) -> None:
        """Remember what will come, and take blocks for it if they are wanted now: all, with room for one token more, or
        none.

        `refusal`: why nothing is taken in, if so. `kept_free`: blocks that are to stay free for others.
        """
        if not refusal and (offer.key in self.by_key or offer.key in self.quarantined):
            refusal = "the ticket is known already"
        if not refusal and offer.reserve:
            refusal = self._reserve(source, offer, kept_free)
        elif not refusal:
            self.by_key[offer.key] = KvImport(source, offer)
        if refusal and offer.reserve:
            source.refuse(offer.key, self._allocator.pool.num_free, refusal)

    def _reserve(self, source: BlockSource, offer: BlockOffer, kept_free: int) -> str:
        """Take blocks for an offer and say so, or return why not."""
        kv_import = self._reservations.reserve(source, offer, kept_free)
        if isinstance(kv_import, str):
            return kv_import
        self.by_key[offer.key] = kv_import
        held = kv_import.cached // self._allocator.block_size
        source.reserve(offer.key, self._reservations.incoming_blocks(kv_import), held)
        return ""

    def open(self, source: BlockSource, offer: BlockOffer) -> KvImport:
        """An import of what a source was asked for, and has. Its key is not in use."""
        kv_import = self.by_key[offer.key] = KvImport(source, offer)
        return kv_import

    def open_ahead(self, source: BlockSource, offer: BlockOffer, key: str, kept_free: int) -> bool:
        """Have a store bring the beginning of what another engine offers under `key`, which waits meanwhile. False:
        there are not enough blocks. `kept_free`: those that are to stay free for others.
        """
        allocator = self._allocator
        hits = allocator.pool.find(offer.identities)
        blocks = allocator.take(hits, offer.tokens, allocator.blocks_for(offer.tokens) + kept_free)
        if blocks is None:
            return False
        kv_import = self.by_key[offer.key] = KvImport(source, offer, blocks, ahead_of=key)
        kv_import.cached = kv_import.arrived = len(hits) * allocator.block_size
        self._fetch(kv_import)
        return True

    def end_ahead(self, kv_import: KvImport) -> None:
        """Let what has come be found in the cache, unless it was given up. Nobody writes to it any more."""
        if kv_import.stopped:
            self.drop(kv_import)
            return
        pool, full = self._allocator.pool, kv_import.arrived // self._allocator.block_size
        for block, digest in zip(kv_import.blocks[:full], kv_import.offer.identities, strict=False):
            pool.publish(block, digest)
        self._release(kv_import)
        self._claim(kv_import, kv_import.arrived)

    # Requests

    def bind(self, kv_import: KvImport, sequence: Sequence, with_state: bool = False) -> None:
        """The request has come that it is for. `with_state`: a state comes behind the blocks."""
        kv_import.state_there = not with_state
        kv_import.sequence, sequence.kv_import = sequence, kv_import
        if kv_import.blocks:
            self._fetch(kv_import)
        if kv_import.blocks and kv_import.done:
            self.make_ready(sequence)

    def follow(self, kv_import: KvImport, sequence: Sequence) -> bool:
        """A further request of the key, with the same tokens, waits until the first has them and finds them in the
        cache, if there is one.
        """
        if not self._allocator.cache.enabled or sequence.scoring or not self.is_for(kv_import, sequence):
            return False
        kv_import.others.append(sequence)
        return True

    def make_ready(self, sequence: Sequence) -> None:
        """Its import is done: it may start as soon as its turn comes."""
        self.fetching.discard(sequence.id)
        bisect.insort(self.ready, sequence, key=lambda s: s.order)

    def fetch(self, sequence: Sequence, spare: int) -> bool:
        """Have the KV of a request without reservation brought, into blocks taken now. False: there are not enough."""
        kv_import, states = sequence.kv_import, self._allocator.states
        assert kv_import is not None and not kv_import.blocks
        if not kv_import.state_there and (states is None or not states.can_fill):
            return False
        if not self._reservations.take(kv_import, sequence, spare):
            return False
        if not kv_import.state_there and states is not None:
            slot = states.begin_filling()
            assert slot is not None  # one was available
            kv_import.slot = slot
        if kv_import.done:
            self.make_ready(sequence)
        else:
            self.fetching.add(sequence.id)
            self._fetch(kv_import)
        return True

    def publish(self, kv_import: KvImport) -> None:
        """Let what has come with a state be found in the caches, where its request finds it like any other."""
        allocator, sequence = self._allocator, kv_import.sequence
        assert allocator.states is not None and sequence is not None
        count = kv_import.offer.tokens // allocator.block_size  # behind which the state is
        allocator.cache.publish(sequence.chain, sequence.tokens, kv_import.blocks, 0, kv_import.arrived)
        slot, kv_import.slot = kv_import.slot, -1
        digest = sequence.chain.of(sequence.tokens, count)[-1]
        allocator.states.end_filling(slot, digest if digest in allocator.pool.digests else None)
        sequence.disk_tokens = max(0, kv_import.offer.tokens - kv_import.cached)
        self._release(kv_import)
        self._claim(kv_import, kv_import.arrived)

    def _fetch(self, kv_import: KvImport) -> None:
        offer = kv_import.offer
        held = min(kv_import.cached, offer.tokens) // offer.page_tokens
        blocks = self._reservations.incoming_blocks(kv_import)
        if kv_import.slot < 0:
            kv_import.source.fetch(offer.key, blocks, held)
        else:
            kv_import.source.fetch(offer.key, blocks, held, kv_import.slot)

    def proposal(self, sequence: Sequence) -> BlockAllocation:
        """The stay that a ready request would begin now: on what arrived, or on what the cache holds if that is more by
        now.
        """
        kv_import, allocator = sequence.kv_import, self._allocator
        assert kv_import is not None and kv_import.done
        if allocator.state_pages:
            return self._proposal_with_state(sequence, kv_import)
        if kv_import.arrived < kv_import.offer.tokens:
            hits = allocator.cache.lookup(sequence.chain, sequence.tokens)
            if len(hits) * allocator.block_size > kv_import.arrived:
                allocator.pool.acquire(hits)
                allocator.pool.release(allocator.pool.own(kv_import.blocks[: len(hits)]))
                kv_import.blocks[: len(hits)] = hits
                kv_import.arrived = len(hits) * allocator.block_size
        positions = min(kv_import.arrived, len(sequence.tokens) - 1)  # of whole blocks more has come
        return BlockAllocation(
            seq=-1,
            blocks=kv_import.blocks,
            scheduled=positions,
            computed=positions,
            prefill_target=sequence.prefill_target,
            first_unscored=sequence.num_prompt,
            placed=kv_import.offer.key if kv_import.placed else "",
        )

    def _proposal_with_state(self, sequence: Sequence, kv_import: KvImport) -> BlockAllocation:
        """The same where layers keep a state: all has arrived, keys, values, and behind them the state."""
        positions, allocator = len(sequence.tokens) - 1, self._allocator
        pages = allocator.blocks_for(positions)
        behind = pages + allocator.state_pages
        return BlockAllocation(
            seq=-1,
            blocks=kv_import.blocks[:pages] + kv_import.blocks[behind:],
            scheduled=positions,
            computed=positions,
            prefill_target=sequence.prefill_target,
            first_unscored=sequence.num_prompt,
            state=SlotAllocation(),
            state_pages=kv_import.blocks[pages:behind],
        )

    def adopt(self, sequence: Sequence, allocation: BlockAllocation) -> None:
        """The ready request begins this stay, which owns the blocks from now on. Full blocks can be found by others."""
        kv_import, allocator = sequence.kv_import, self._allocator
        assert kv_import is not None
        if allocator.states is not None and allocation.state is not None:
            allocator.states.begin(allocation.state)
        if allocator.whole_pages:
            needed = allocator.blocks_for(len(sequence.tokens))
            allocator.pool.release(allocation.blocks[needed:])
            del allocation.blocks[needed:]
        self._allocator.start(sequence, allocation)
        self._allocator.publish(sequence, allocation)
        if sequence.request.kv is None:
            sequence.disk_tokens = max(0, kv_import.arrived - kv_import.cached)
        kv_import.placed = False  # from now on it is the stay's to say
        self._claim(kv_import, kv_import.arrived)

    # Ends

    def placed(self, key: str, first: int, blocks: list[int]) -> bool:
        """Read these pages of a key where they are. False: nobody has a use for them any more."""
        kv_import = self.by_key.get(key)
        if kv_import is None or not kv_import.blocks:
            return False
        kv_import.placed = True
        kv_import.blocks[first : first + len(blocks)] = blocks
        return True

    def fill_holes(self, kv_import: KvImport, kept_free: int) -> bool:
        """No more comes: what was to be read in place and did not arrive gets blocks, to be computed. False: there are
        not enough.
        """
        return self._reservations.fill_holes(kv_import, kept_free)

    def arrived(self, kv_import: KvImport, tokens: int) -> None:
        """The first `tokens` positions lie verified in its blocks."""
        if kv_import.blocks:
            kv_import.arrived = max(kv_import.arrived, min(tokens, kv_import.offer.tokens))
            kv_import.state_there |= kv_import.arrived >= kv_import.offer.tokens

    def drop(self, kv_import: KvImport) -> None:
        """Forget one that nobody writes to, and free its blocks."""
        self._release(kv_import)
        self._forget(kv_import)

    def _release(self, kv_import: KvImport) -> None:
        self._allocator.pool.release(self._allocator.pool.own(kv_import.blocks))
        if kv_import.slot >= 0 and self._allocator.states is not None:
            self._allocator.states.end_filling(kv_import.slot)
            kv_import.slot = -1
        if kv_import.placed:
            self._allocator.unused.append(kv_import.offer.key)

    def give_up(self, kv_import: KvImport) -> None:
        """Give it up: it is of no use any more. Its blocks are free at once if nobody writes to them, else when the
        source says so.
        """
        self._part(kv_import)
        if kv_import.done:
            self._release(kv_import)
            self._claim(kv_import, 0)
            return
        kv_import.source.stop(kv_import.offer.key)
        kv_import.stopped = True
        if not kv_import.blocks:
            self._forget(kv_import)

    def quarantine(self, kv_import: KvImport) -> None:
        """Keep the blocks that did not arrive whole from any use. The others are given back; with a request, they can
        be found in the cache.
        """
        allocator, sequence = self._allocator, kv_import.sequence
        full = kv_import.arrived // allocator.block_size
        if sequence is not None:
            allocator.cache.publish(sequence.chain, sequence.tokens, kv_import.blocks, 0, kv_import.arrived)
        allocator.pool.release(kv_import.blocks[:full])
        self.quarantined[kv_import.offer.key] = kv_import.blocks[full:]
        self._claim(kv_import, full * allocator.block_size if sequence is not None else 0)

    def end_quarantine(self, key: str) -> None:
        """Nobody writes to a key's blocks any more, if they were in quarantine."""
        self._allocator.pool.release(self.quarantined.pop(key, []))

    @property
    def num_quarantined(self) -> int:
        """Blocks that are out of use, perhaps for ever."""
        return sum(len(blocks) for blocks in self.quarantined.values())

    def give_way(self) -> Sequence | None:
        """Free the blocks of the ready request that is last in order; what arrived of it can still be found in the
        cache until the blocks are used. Returns the request, which has to go the ordinary way. None: nobody is ready.
        """
        if not self.ready:
            return None
        sequence = self.ready[-1]
        kv_import = sequence.kv_import
        assert kv_import is not None
        if not kv_import.placed:
            self._allocator.cache.publish(sequence.chain, sequence.tokens, kv_import.blocks, 0, kv_import.arrived)
        self.give_up(kv_import)
        return sequence

    def give_up_newest(self) -> bool:
        """Give up the newest reservation that no request has come for, unless blocks are on their way back already.
        True: they are free now.
        """
        if any(kv_import.stopped for kv_import in self.by_key.values()):
            return False
        newest = next((d for d in reversed(self.by_key.values()) if d.blocks and d.sequence is None), None)
        if newest is None:
            return False
        self.give_up(newest)
        return newest.done

    def unclaimed(self) -> list[KvImport]:
        """Return those that no request has come for, and that were not given up."""
        return [d for d in self.by_key.values() if d.sequence is None and not d.stopped]

    def claimed(self) -> list[KvImport]:
        """Return those whose request waits for them."""
        return [d for d in self.by_key.values() if d.sequence is not None]

    def tables(self) -> Iterator[list[int]]:
        """The blocks of each import."""
        yield from (kv_import.blocks for kv_import in self.by_key.values())
        yield from self.quarantined.values()

    def hold_blocks(self) -> bool:
        """Return whether any import has blocks."""
        return any(kv_import.blocks for kv_import in self.by_key.values())

    def await_news(self) -> bool:
        """Return whether a source will sooner or later say that blocks are free, or that KV has come."""
        return any(
            kv_import.blocks and not (kv_import.done and kv_import.sequence) for kv_import in self.by_key.values()
        )

    def _claim(self, kv_import: KvImport, tokens: int) -> None:
        kv_import.source.release(kv_import.offer.key, tokens)
        self._forget(kv_import)

    def _forget(self, kv_import: KvImport) -> None:
        del self.by_key[kv_import.offer.key]
        self._part(kv_import)

    def _part(self, kv_import: KvImport) -> None:
        """Its requests have nothing to do with it any more."""
        self.released += kv_import.others
        kv_import.others = []
        sequence, kv_import.sequence = kv_import.sequence, None
        if sequence is not None:
            sequence.kv_import = None
            self.fetching.discard(sequence.id)
            if sequence in self.ready:
                self.ready.remove(sequence)
