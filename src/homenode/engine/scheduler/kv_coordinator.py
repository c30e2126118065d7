"""The scheduler's side of the sources of KV blocks: what they tell, and what becomes of requests that wait for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.block_source import BlockOffer, BlockSource
from homenode.engine.kv.exports import KvExports
from homenode.engine.kv.imports import KvImports
from homenode.engine.kv.sequence import BlockAllocation, KvImport, Sequence
from homenode.engine.scheduler.admission import longest_sequence
from homenode.engine.scheduler.sequence_lists import SequenceLists
from homenode.engine.scheduler.steps.step_costs import StepCosts
from homenode.engine.scheduler.steps.step_load import NO_LOAD, StepLoad
from homenode.engine.step import WorkerLimits
from homenode.errors import UserError
from homenode.transfer.scheduler_events import KvTicket
from homenode.units import format_count


@dataclass(frozen=True, slots=True)
class KvRefusal:
    """A request that is to end since its KV cannot be handed over."""

    sequence: Sequence
    reason: str
    retry_after_s: float | None = None


class KvCoordinator:
    """Takes sequences aside while they wait for a source of blocks, and gives them back to the lists."""

    def __init__(
        self,
        limits: WorkerLimits,
        allocator: KvAllocator,
        lists: SequenceLists,
        kv_imports: KvImports,
        costs: StepCosts,
        peers: BlockSource,
        stores: Iterable[BlockSource] = (),
    ) -> None:
        """`costs`: of the steps of this engine, by which a hand-over is worth waiting for. `peers`: other engines, with
        which requests that have a ticket exchange KV. `stores`: where blocks of all others are kept and found again.
        """
        self._limits = limits
        self._lists = lists
        self.kv_imports = kv_imports
        self.kv_exports = KvExports(allocator)
        self._allocator = allocator
        self._peers, self._stores = peers, tuple(stores)
        self._costs = costs
        self._waiting_offers: dict[str, tuple[BlockSource, BlockOffer]] = {}  # by key, while a store begins them
        self._closed = False
        self.workers_are_lost = False  # and those that are left may still write to any block

    # Requests

    def refusal(self, ticket: KvTicket, max_tokens: int) -> UserError | None:
        """Return why a request with this ticket can never be sent, if so."""
        if ticket.sends and max_tokens:
            return UserError(
                f"max_tokens is {max_tokens}; a request whose KV is handed over draws no token: make it 0",
                param="max_tokens",
            )
        if ticket.sends and ticket.ticket in self.kv_exports:
            return UserError(
                f"ticket {ticket.ticket} is in use by another request; draw a new one for each", param="ticket"
            )
        return None

    def arrive(self, sequence: Sequence) -> None:
        """Send a new request with a ticket where it belongs: aside, to the ready ones, or into the queue like any
        other.
        """
        kv = sequence.request.kv
        assert kv is not None
        if kv.sends:
            self._lists.waiting_for_kv[sequence.id] = sequence
            prompt = StepLoad.of_sequence(0, len(sequence.tokens), 0)
            held = self.kv_exports.open(self._peers, sequence, self._costs.seconds(NO_LOAD, prompt))
            if held is not None:
                self.admitted(kv.ticket, held)
            return
        kv_import = self.kv_imports.find(kv.ticket)
        if kv_import is not None and kv_import.sequence is None:
            self._bind(kv_import, sequence)
        elif kv_import is not None and self.kv_imports.follow(kv_import, sequence):
            self._lists.waiting_for_kv[sequence.id] = sequence
            return
        if sequence.kv_import is None or not sequence.kv_import.blocks:
            self._lists.waiting.push(sequence)
        elif not sequence.kv_import.done:
            self._lists.waiting_for_kv[sequence.id] = sequence

    def _bind(self, kv_import: KvImport, sequence: Sequence) -> None:
        """Bind a request to its import, if the tokens are the same and it has a use for their KV."""
        if not self.kv_imports.is_for(kv_import, sequence):
            ticket = kv_import.offer.key
            self._lists.warnings.append(
                f"request {sequence.id} came with ticket {ticket}, but the KV of that ticket is of other tokens: "
                "its prompt is computed here. "
                f"Both engines must be given the same prompt and cache salt, and have the same pd_secret."
            )
        elif sequence.scoring:  # all positions are to be computed, for their logits
            self.kv_imports.give_up(kv_import)
        else:
            self.kv_imports.bind(kv_import, sequence)

    def end(self, sequence: Sequence, reason: str) -> None:
        """A request has ended; it is neither running nor waiting any more."""
        if sequence.kv_import is not None:
            self.kv_imports.give_up(sequence.kv_import)
            self._lists.let_followers_go()
        self.kv_exports.end(sequence, reason)

    def computed(self, sequence: Sequence, allocation: BlockAllocation) -> None:
        """Tell of the pages of a sent request that are complete by now."""
        if sequence.kv_export is not None:
            self.kv_exports.export_complete(sequence.kv_export, allocation)

    def seek(self, sequence: Sequence) -> None:
        """Have the beginning of a new request's prompt fetched when its turn comes, where a store has more of it than
        the prefix cache: of keys and values, or of states where layers keep them besides.
        """
        cache, size, states = self._allocator.cache, self._allocator.block_size, self._allocator.states
        if not self._stores or not cache.enabled or sequence.scoring:
            return
        with_state = states is not None
        identities = sequence.chain.of(sequence.tokens, (len(sequence.tokens) - 1) // size)
        hits = len(self._allocator.pool.find(identities))
        cached = (hits if states is None else states.find(identities[:hits])) * size
        found = [
            (source, offer) for source in self._stores if (offer := source.find(identities, with_state)) is not None
        ]
        found.sort(key=lambda each: -each[1].tokens)
        for source, offer in found:
            if sequence.kv_import is None and offer.tokens > cached and self._is_worth(offer, cached):
                kv_import = self.kv_imports.open(source, offer)
                kv_import.begun_at = self._lists.now
                self.kv_imports.bind(kv_import, sequence, with_state)
            else:
                source.release(offer.key, 0)

    def _is_worth(self, offer: BlockOffer, cached: int) -> bool:
        """Return whether bringing what is offered takes less than computing it. As long as one of the two was not
        measured, it does.
        """
        return not offer.seconds or not self._costs.known or offer.seconds < self._compute_s(cached, offer.tokens)

    def _compute_s(self, start: int, end: int) -> float:
        """Return the seconds that computing these positions of a prompt probably takes; 0: nobody knows."""
        return self._costs.seconds(NO_LOAD, StepLoad.of_sequence(start, end - start, 0))

    def keep(self, sequence: Sequence) -> None:
        """Offer the stores the blocks of a request whose prompt was computed, or that is about to end."""
        allocation = sequence.allocation
        if not self._stores or allocation is None or allocation.placed:
            return
        seconds = self._compute_s(0, allocation.published * self._allocator.block_size)
        for source in self._stores:
            self.kv_exports.store(source, sequence, allocation, seconds)
            if sequence.request.session and allocation.published:
                source.pin(sequence.request.session, sequence.chain.of(sequence.tokens, allocation.published))

    def has_told(self, sequence: Sequence) -> bool:
        """Return whether the agent knows of pages of a sent request, which it reads here."""
        return sequence.kv_export is not None and bool(sequence.kv_export.blocks)

    # What sources tell. Keys that are not known (any more) are passed over: messages cross.

    def admitted(self, key: str, held: int) -> None:
        """Let a request be computed: its source has room, and the first `held` pages already."""
        kv_export = self.kv_exports.find(key)
        if kv_export is None or kv_export.sequence is None or kv_export.admitted:
            return
        kv_export.admitted = True
        kv_export.reported = max(0, min(held, self._allocator.blocks_for(kv_export.tokens)))
        del self._lists.waiting_for_kv[kv_export.sequence.id]
        self._lists.waiting.push(kv_export.sequence)
        self._lists.let_followers_go()

    def refused(self, key: str, reason: str, retry_after_s: float | None = None) -> KvRefusal | None:
        """Close the export that a source has no room for. Returns the request that is to be ended."""
        kv_export = self.kv_exports.find(key)
        if kv_export is None or kv_export.sequence is None:
            return None
        kv_export.closed = True
        return KvRefusal(kv_export.sequence, reason, retry_after_s)

    def stored(self, key: str) -> KvRefusal | None:
        """Free blocks that nobody reads any more. Returns the request that is to be ended, if it was not done with."""
        kv_export = self.kv_exports.returned(key)
        if kv_export is None or kv_export.sequence is None:
            return None
        return KvRefusal(kv_export.sequence, "the hand-over was ended before all of the prompt was computed")

    def offered(self, source: BlockSource, offer: BlockOffer) -> None:
        """Take in an offer of blocks, before or after their request. What a store here has of them comes from there."""
        if not self._begins_here(source, offer):
            self._take_offer(source, offer)

    def _begins_here(self, source: BlockSource, offer: BlockOffer) -> bool:
        """Have a store bring the beginning of an offer, if it has more of it than the cache. The offer waits for it."""
        allocator, size = self._allocator, self._allocator.block_size
        if not self._stores or allocator.states is not None or allocator.whole_pages or not allocator.cache.enabled:
            return False
        if not offer.reserve or offer.page_tokens != size or offer.in_place or offer.key in self.kv_imports.by_key:
            return False
        if self._offer_problem(offer):
            return False
        identities = offer.identities[: offer.tokens // size]
        cached = len(allocator.pool.find(identities)) * size
        for store in self._stores:
            found = store.find(identities)
            if found is None:
                continue
            worth = found.tokens > cached and self._is_worth(found, cached)
            if worth and self.kv_imports.open_ahead(store, found, offer.key, self._kept_free()):
                self._waiting_offers[offer.key] = (source, offer)
                return True
            store.release(found.key, 0)
        return False

    def _take_offer(self, source: BlockSource, offer: BlockOffer) -> None:
        self.kv_imports.offer(source, offer, self._offer_problem(offer), self._kept_free())
        if (kv_import := self.kv_imports.of(offer.key)) is not None:
            kv_import.begun_at = kv_import.begun_at or self._lists.now
        self._lists.let_followers_go()

    def placed(self, source: BlockSource, key: str, first: int, blocks: list[int]) -> None:
        """Read pages first, first + 1, ... in these blocks, where the source has them."""
        if not self.kv_imports.placed(key, first, blocks):
            source.unuse(key)

    def arrived(self, key: str, tokens: int) -> None:
        """Take in that the first `tokens` positions lie verified in their blocks."""
        kv_import = self.kv_imports.of(key)
        if kv_import is not None:
            self.kv_imports.arrived(kv_import, tokens)
            if kv_import.done:
                kv_import.done_at = kv_import.done_at or self._lists.now
                self._finish(kv_import)
        self._lists.let_followers_go()

    def failed(self, key: str, forgotten: bool = False) -> None:
        """End an import: no more will come, and nothing writes to the blocks. `forgotten`: nobody has a use for it."""
        self._end_import(key, forgotten)
        self._lists.let_followers_go()

    def forgotten(self, key: str) -> None:
        """End an import that no request came for in time, or that was in quarantine."""
        self.kv_imports.end_quarantine(key)
        self.failed(key, forgotten=True)

    def quarantined(self, key: str, tokens: int) -> None:
        """End an import to which somebody may still write behind the first `tokens` positions: the rest of its blocks
        is out of use. Its request, if it is here, goes the ordinary way, with what the cache holds of it.
        """
        kv_import = self.kv_imports.of(key)
        if kv_import is None or not kv_import.blocks:
            self._end_import(key)
        else:
            self.kv_imports.arrived(kv_import, tokens)
            sequence = kv_import.sequence
            self.kv_imports.quarantine(kv_import)
            if sequence is not None:
                self._lists.waiting_for_kv.pop(sequence.id, None)
                self._lists.waiting.push(sequence)
        self._lists.let_followers_go()

    def _offer_problem(self, offer: BlockOffer) -> str:
        """Return why an offer cannot be taken, however long one waits; empty if it can."""
        tokens, longest = offer.tokens, longest_sequence(self._limits)
        if self._closed:
            return "the engine is shutting down"
        if self.workers_are_lost and offer.reserve:
            return "workers of the engine were lost and are being replaced"
        if tokens < 1 or offer.page_tokens < 1 or len(offer.identities) != -(-tokens // offer.page_tokens):
            return (
                f"{format_count(len(offer.identities), 'page')} of {format_count(offer.page_tokens, 'token')} do "
                f"not make {format_count(tokens, 'token')}"
            )
        if self._allocator.whole_pages:
            size, state = self._allocator.block_size, self._allocator.state_pages
            if offer.page_tokens != size or tokens % size or tokens <= state * size:
                return (
                    f"{format_count(tokens, 'token')} in pages of {offer.page_tokens} are no whole pages of {size} "
                    f"as they are here, {state} of them for a state"
                )
            tokens -= (state + 1) * size - 1  # at least so many are of the prompt
        if tokens + 2 > longest:
            return (
                f"a sequence may have {format_count(longest, 'token')} here, answer included; {tokens} would leave "
                "no room for the last of its prompt and one more"
            )
        return ""

    def _kept_free(self) -> int:
        """Blocks a reservation must leave: for those who run or will, and for the first in the queue, who was here
        before.
        """
        first = self._lists.waiting.first()
        wanted = self._allocator.blocks_for(len(first.tokens) + 1) if first is not None else 0
        return wanted + (self._lists.spare or int(self.kv_imports.hold_blocks()))

    def _end_import(self, key: str, forgotten: bool = False) -> None:
        self._waiting_offers.pop(key, None)
        kv_import = self.kv_imports.of(key)
        if kv_import is None:
            return
        kv_import.ended = True
        if kv_import.ahead_of:
            self._finish(kv_import)
            return
        unclaimed = kv_import.sequence is None
        if kv_import.stopped or (unclaimed and forgotten):
            self.kv_imports.drop(kv_import)
        elif not kv_import.blocks or (unclaimed and kv_import.arrived <= kv_import.cached):
            # Nothing came of it; a request that waits in the queue is one like any other now.
            self.kv_imports.give_up(kv_import)
        elif kv_import.slot >= 0:
            self._compute_instead(kv_import)  # the same where its state comes in a slot
        elif self._allocator.state_pages and kv_import.arrived < kv_import.offer.tokens:
            self._compute_instead(kv_import)  # keys and values are of no use without the state behind them
        elif not self.kv_imports.fill_holes(kv_import, self._kept_free()):
            self._compute_instead(kv_import)
        else:
            self._finish(kv_import)

    def _compute_instead(self, kv_import: KvImport) -> None:
        """There are no blocks for the rest of it now: its request, if it is here, waits for its turn like any other."""
        sequence = kv_import.sequence
        self.kv_imports.give_up(kv_import)
        if sequence is not None and self._lists.waiting_for_kv.pop(sequence.id, None) is not None:
            self._lists.waiting.push(sequence)

    def _finish(self, kv_import: KvImport) -> None:
        """An import is done: its request goes on, if it waits for that; one that was given up frees its blocks."""
        sequence = kv_import.sequence
        if kv_import.ahead_of:
            self.kv_imports.end_ahead(kv_import)
            if (waiting := self._waiting_offers.pop(kv_import.ahead_of, None)) is not None:
                self._take_offer(*waiting)
        elif kv_import.stopped:
            self.kv_imports.drop(kv_import)
        elif kv_import.slot >= 0:
            assert sequence is not None  # a store is asked for a request
            self.kv_imports.publish(kv_import)
            if self._lists.waiting_for_kv.pop(sequence.id, None) is not None:
                self._lists.waiting.push(sequence)
        elif sequence is not None and self._lists.waiting_for_kv.pop(sequence.id, None) is not None:
            self.kv_imports.make_ready(sequence)

    # The engine

    def start_drain(self) -> None:
        """No request will come any more for what was offered."""
        self._closed = True
        for kv_import in self.kv_imports.unclaimed():
            self.kv_imports.give_up(kv_import)

    def step_failed(self) -> None:
        """What came from outside is given up together with all else that was computed before: its requests compute
        their prompts.

        What was lent stays lent: those pages were complete, and no lost step wrote to them. That they are what they
        were shows in their digests; a store, which makes these itself, is told.
        """
        self.kv_exports.lose("a step was lost, and perhaps KV memory with it")
        for kv_import in self.kv_imports.claimed():
            sequence = kv_import.sequence
            if sequence is not None and kv_import.blocks:
                self._lists.waiting_for_kv.pop(sequence.id, None)
                self.kv_imports.give_up(kv_import)
                self._lists.waiting.push(sequence)
        for kv_import in self.kv_imports.unclaimed():
            if kv_import.blocks:
                self.kv_imports.give_up(kv_import)
        self._lists.let_followers_go()

    def stuck_for(self) -> str:
        """Return why requests may wait for ever, if the agent may never free blocks; empty if it cannot be blamed."""
        count = self.kv_imports.num_quarantined
        text = (
            f"{format_count(count, 'KV block is', 'KV blocks are')} out of use, since an engine that is out of "
            "reach may still write to them"
        )
        return f"{text}; the rest is too small for this request" if count else ""

    def awaits(self) -> bool:
        """A source will tell something, in bounded time, that lets a request go on or frees blocks."""
        return bool(self._lists.waiting_for_kv) or self.kv_exports.hold_blocks() or self.kv_imports.await_news()

    def holds_blocks(self) -> bool:
        """Blocks are lent, or kept for KV that comes."""
        return self.kv_exports.hold_blocks() or self.kv_imports.hold_blocks()

    def tables(self) -> list[list[int]]:
        """The blocks that are held here, for the books."""
        return [*self.kv_exports.tables(), *self.kv_imports.tables()]
