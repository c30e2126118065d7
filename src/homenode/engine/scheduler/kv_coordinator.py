"""The scheduler's side of handing KV over: what the agent tells, and what becomes of requests with a ticket."""

from __future__ import annotations

from dataclasses import dataclass

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.exports import KvExports
from homenode.engine.kv.imports import KvImports
from homenode.engine.kv.sequence import BlockAllocation, KvImport, Sequence
from homenode.engine.scheduler.admission import longest_sequence
from homenode.engine.scheduler.planner import Planner
from homenode.engine.step import WorkerLimits
from homenode.errors import UserError
from homenode.transfer import seam
from homenode.units import format_count


@dataclass(frozen=True, slots=True)
class KvRefusal:
    """A request that is to end since its KV cannot be handed over."""

    sequence: Sequence
    reason: str
    retry_after_s: float | None = None


class KvCoordinator:
    """Takes sequences aside while they wait for another engine, and gives them back to the planner. `messages` are for the agent."""

    def __init__(
        self,
        limits: WorkerLimits,
        residents: KvAllocator,
        planner: Planner,
        deliveries: KvImports,
        messages: list[seam.ToAgent],
    ) -> None:
        self._limits = limits
        self._planner = planner
        self._deliveries = deliveries
        self._loans = KvExports(residents.pool, residents.block_size)
        self._residents = residents
        self.messages = messages
        self._closed = False
        self.workers_are_lost = False  # and those that are left may still write to any block

    # Requests

    def refusal(self, ticket: seam.KvTicket, max_tokens: int) -> UserError | None:
        """Why a request with this ticket can never be sent, if so."""
        if ticket.sends and max_tokens:
            return UserError(
                f"max_tokens is {max_tokens}; a request whose KV is handed over draws no token: make it 0",
                param="max_tokens",
            )
        if ticket.sends and ticket.ticket in self._loans:
            return UserError(
                f"ticket {ticket.ticket} is in use by another request; draw a new one for each", param="ticket"
            )
        return None

    def arrive(self, sequence: Sequence) -> None:
        """Send a new request with a ticket where it belongs: aside, to the ready ones, or into the queue like any other."""
        kv = sequence.request.kv
        assert kv is not None
        if kv.sends:
            self._planner.aside[sequence.id] = sequence
            self.messages.append(self._loans.open(sequence))
            return
        delivery = self._deliveries.find(kv.ticket)
        if delivery is not None and delivery.sequence is None:
            self._meet(delivery, sequence)
        elif delivery is not None and self._deliveries.follow(delivery, sequence):
            self._planner.aside[sequence.id] = sequence
            return
        if sequence.delivery is None or not sequence.delivery.blocks:
            self._planner.waiting.push(sequence)
        elif not sequence.delivery.done:
            self._planner.aside[sequence.id] = sequence

    def _meet(self, delivery: KvImport, sequence: Sequence) -> None:
        """Bind a request to its delivery, if the tokens are the same and it has a use for their KV."""
        if not self._deliveries.is_for(delivery, sequence):
            ticket = delivery.offer.ticket
            self._planner.warnings.append(
                f"request {sequence.id} came with ticket {ticket}, but the KV of that ticket is of other tokens: its prompt is computed here. "
                f"Both engines must be given the same prompt and cache salt, and have the same pd_secret."
            )
        elif sequence.scoring:  # all positions are to be computed, for their logits
            self._deliveries.give_up(delivery)
        else:
            self._deliveries.bind(delivery, sequence)

    def end(self, sequence: Sequence, reason: str) -> None:
        """A request with a ticket has ended; it is neither running nor waiting any more."""
        if sequence.delivery is not None:
            self._deliveries.give_up(sequence.delivery)
            self._planner.let_followers_go()
        abandoned = self._loans.end(sequence, reason)
        if abandoned is not None:
            self.messages.append(abandoned)

    def computed(self, sequence: Sequence, residency: BlockAllocation) -> None:
        """Tell of the pages of a sent request that are complete by now."""
        if sequence.loan is not None:
            told = self._loans.lend(sequence.loan, residency)
            if told is not None:
                self.messages.append(told)

    def has_told(self, sequence: Sequence) -> bool:
        """Whether the agent knows of pages of a sent request, which it reads here."""
        return sequence.loan is not None and bool(sequence.loan.blocks)

    # What the agent tells

    def take(self, event: seam.ToScheduler) -> KvRefusal | None:
        """Take in what the agent told. Tickets that are not known (any more) are passed over: messages cross. Returns a request to be ended."""
        match event:
            case seam.SendAdmitted(_, ticket, held):
                self._admitted(ticket, held)
            case seam.SendRefused(_, ticket, reason, retry_after_s):
                loan = self._loans.find(ticket)
                if loan is not None and loan.sequence is not None:
                    loan.closed = True
                    return KvRefusal(loan.sequence, reason, retry_after_s)
            case seam.Returned(_, ticket):
                loan = self._loans.returned(ticket)
                if loan is not None and loan.sequence is not None:
                    return KvRefusal(loan.sequence, "the hand-over was ended before all of the prompt was computed")
            case seam.Offered():
                self._deliveries.offer(event, self._no_room(event), self._kept_free())
            case seam.Arrived(_, ticket, tokens, first, blocks):
                if blocks:
                    self._deliveries.placed(ticket, first, blocks)
                self._arrived(ticket, tokens)
            case seam.Failed(_, ticket):
                self._over(ticket)
            case seam.Quarantined(_, ticket, tokens):
                self._quarantined(ticket, tokens)
            case seam.Forgotten(_, ticket):
                self._deliveries.end_quarantine(ticket)
                self._over(ticket, forgotten=True)
        self._planner.let_followers_go()
        return None

    def _admitted(self, ticket: str, held: int) -> None:
        loan = self._loans.find(ticket)
        if loan is None or loan.sequence is None or loan.admitted:
            return
        loan.admitted = True
        loan.told = max(0, min(held, self._residents.blocks_for(loan.tokens)))
        del self._planner.aside[loan.sequence.id]
        self._planner.waiting.push(loan.sequence)

    def _no_room(self, offer: seam.Offered) -> str:
        """Why an offer cannot be taken, however long one waits; empty if it can."""
        tokens, longest = offer.tokens, longest_sequence(self._limits)
        if self._closed:
            return "the engine is shutting down"
        if self.workers_are_lost and offer.reserve:
            return "workers of the engine were lost and are being replaced"
        if tokens < 1 or offer.page_tokens < 1 or len(offer.identities) != -(-tokens // offer.page_tokens):
            return f"{format_count(len(offer.identities), 'page')} of {format_count(offer.page_tokens, 'token')} do not make {format_count(tokens, 'token')}"
        if tokens + 2 > longest:
            return f"a sequence may have {format_count(longest, 'token')} here, answer included; {tokens} would leave no room for the last of its prompt and one more"
        return ""

    def _kept_free(self) -> int:
        """Blocks a reservation must leave: for those who run or will, and for the first in the queue, who was here before."""
        first = self._planner.waiting.first()
        wanted = self._residents.blocks_for(len(first.tokens) + 1) if first is not None else 0
        return wanted + (self._planner.spare or int(self._deliveries.hold_blocks()))

    def _arrived(self, ticket: str, tokens: int) -> None:
        delivery = self._deliveries.of(ticket)
        if delivery is not None:
            self._deliveries.arrived(delivery, tokens)
            if delivery.done:
                self._settle(delivery)

    def _over(self, ticket: str, forgotten: bool = False) -> None:
        delivery = self._deliveries.of(ticket)
        if delivery is None:
            return
        delivery.over = True
        unclaimed = delivery.sequence is None
        if delivery.stopped or (unclaimed and forgotten):
            self._deliveries.drop(delivery)
        elif not delivery.blocks or (unclaimed and delivery.arrived <= delivery.held):
            self._deliveries.give_up(
                delivery
            )  # nothing came of it; a request that waits in the queue is one like any other now
        elif not self._deliveries.fill_holes(delivery, self._kept_free()):
            self._compute_instead(delivery)
        else:
            self._settle(delivery)

    def _compute_instead(self, delivery: KvImport) -> None:
        """There are no blocks for the rest of it now: its request, if it is here, waits for its turn like any other."""
        sequence = delivery.sequence
        self._deliveries.give_up(delivery)
        if sequence is not None and self._planner.aside.pop(sequence.id, None) is not None:
            self._planner.waiting.push(sequence)

    def _quarantined(self, ticket: str, tokens: int) -> None:
        """The rest of a delivery's blocks is out of use; its request, if it is here, goes the ordinary way, with what the cache holds of it."""
        delivery = self._deliveries.of(ticket)
        if delivery is None or not delivery.blocks:
            self._over(ticket)
            return
        self._deliveries.arrived(delivery, tokens)
        sequence = delivery.sequence
        self._deliveries.quarantine(delivery)
        if sequence is not None:
            self._planner.aside.pop(sequence.id, None)
            self._planner.waiting.push(sequence)

    def _settle(self, delivery: KvImport) -> None:
        """A delivery is done: its request goes on, if it waits for that; one that was given up frees its blocks."""
        sequence = delivery.sequence
        if delivery.stopped:
            self._deliveries.drop(delivery)
        elif sequence is not None and self._planner.aside.pop(sequence.id, None) is not None:
            self._deliveries.make_ready(sequence)

    # The engine

    def start_drain(self) -> None:
        """No request will come any more for what was offered."""
        self._closed = True
        for delivery in self._deliveries.unclaimed():
            self._deliveries.give_up(delivery)

    def step_failed(self) -> None:
        """What came from outside is given up together with all else that was computed before: its requests compute their prompts.

        What was lent stays lent: those pages were complete, and no lost step wrote to them. That they are what they were shows in their digests.
        """
        for delivery in self._deliveries.claimed():
            sequence = delivery.sequence
            if sequence is not None and delivery.blocks:
                self._planner.aside.pop(sequence.id, None)
                self._deliveries.give_up(delivery)
                self._planner.waiting.push(sequence)
        for delivery in self._deliveries.unclaimed():
            if delivery.blocks:
                self._deliveries.give_up(delivery)
        self._planner.let_followers_go()

    def stuck_for(self) -> str:
        """Why requests may wait for ever, if the agent may never free blocks; empty if it cannot be blamed."""
        count = self._deliveries.num_quarantined
        text = f"{format_count(count, 'KV block is', 'KV blocks are')} out of use, since an engine that is out of reach may still write to them"
        return f"{text}; the rest is too small for this request" if count else ""

    def awaits(self) -> bool:
        """The agent will tell something, in bounded time, that lets a request go on or frees blocks."""
        return bool(self._planner.aside) or self._loans.hold_blocks() or self._deliveries.await_news()

    def holds_blocks(self) -> bool:
        """Blocks are lent, or kept for KV that comes."""
        return self._loans.hold_blocks() or self._deliveries.hold_blocks()

    def tables(self) -> list[list[int]]:
        """The blocks that are held here, for the books."""
        return [*self._loans.tables(), *self._deliveries.tables()]
