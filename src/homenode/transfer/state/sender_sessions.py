"""The sender's transfers as its scheduler sees them: they wait for a connection and for room, are offered, computed,
and given back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from homenode.transfer.scheduler_events import (
    Abandoned,
    Computed,
    Released,
    Returned,
    SendAdmitted,
    SendRefused,
    SendWanted,
    ToAgent,
)
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.state.context import SenderContext
from homenode.transfer.state.deadlines import ReleasedTickets
from homenode.transfer.state.machine import Connect, SendState
from homenode.transfer.state.pages import page_count
from homenode.transfer.state.peers import PeerBreaker, PeerProcess
from homenode.transfer.state.send_session import SendSession
from homenode.transfer.wire.message import MOST_PAGES, Abandon, Offer, decode_published
from homenode.units import format_count


@dataclass
class Receiver:
    """One alloc address."""

    address: str
    breaker: PeerBreaker
    process: PeerProcess | None = None
    connecting: bool = False
    failed_at: float = -1e9
    failure: str = ""

    @property
    def connected(self) -> bool:
        return self.process is not None and self.process.made is not None and self.process.address == self.address


class SenderSessions:
    """Transfers by their tickets, by their numbers, and by the copies and sends that are under way; and the addresses
    that they wait for. `draining`: why no more are taken."""

    def __init__(self, ctx: SenderContext, settings: TransferConfig) -> None:
        self.ctx = ctx
        self.tickets: dict[str, SendSession] = {}
        self.pulls: dict[int, SendSession] = {}
        self.going: dict[int, SendSession] = {}
        self.receivers: dict[str, Receiver] = {}
        self.empty: set[str] = set()  # tickets of prompts of one token
        self.next_pull = 0
        self.draining = ""
        self.breaker_ttl = settings.pd_alloc_fail_backoff_ttl
        # Called when a session of a process has ended; `receiver_peers.ReceiverPeers.reap`.
        self.on_removed: Callable[[PeerProcess], None] = lambda process: None
        self._limits = ctx.limits
        self._mode = "push" if ctx.push else "pull-delay" if settings.pd_delay_pull else "pull-eager"
        self._room_wait = settings.pd_room_wait
        self._full_until = -1e9  # a transfer has waited for room here in vain; until then no other does
        self._document = (b"", "")  # the last one, and the address it names: usually it is the next one too
        self._released = ReleasedTickets(self._limits.remembered)
        self._by_message: Mapping[type, Callable[[Any], None]] = {
            SendWanted: self._on_wanted,
            Computed: self._on_computed,
            Released: self._on_released,
            Abandoned: self._on_abandoned,
        }

    def of(self, process: PeerProcess) -> list[SendSession]:
        """The transfers with a process."""
        return [session for session in self.pulls.values() if session.process is process]

    def take(self, message: ToAgent) -> None:
        """Take a message of the scheduler."""
        handle = self._by_message.get(type(message))
        if handle is not None:
            handle(message)

    # Wanted

    def _on_wanted(self, wanted: SendWanted) -> None:
        ctx, ticket = self.ctx, wanted.ticket
        objection = self._objection(wanted)
        if objection is not None:
            return self._tell_refused(ticket, *objection)
        if not wanted.tokens:
            self.empty.add(ticket)
            return ctx.tell(SendAdmitted(ctx.now, ticket))
        try:
            address = self._address(wanted.peer)
        except (msgspec.DecodeError, ValueError) as error:
            return self._tell_refused(ticket, "peer", f"the receiver's published document cannot be used: {error}")
        receiver = self.receiver(address)
        session = SendSession(ctx, ticket, address, wanted.tokens, wanted.identities, ctx.now)
        if receiver.breaker.ask(ticket, ctx.now) == "refuse":
            left = receiver.breaker.left(ctx.now)
            return self._tell_refused(ticket, "breaker", "the receiver had no room a moment ago", left)
        if not receiver.connected and receiver.failure:
            return self._try_again(receiver, ticket)
        if ctx.now < self._full_until and not ctx.admission.has_room(session.pages):
            left = self._full_until - ctx.now
            return self._tell_refused(ticket, "no room", "the transfer buffer was full a moment ago", left)
        session.wait_s = self._wait_s(wanted.compute_s)
        return self._queue(session, receiver)

    def _queue(self, session: SendSession, receiver: Receiver) -> None:
        ctx, ticket, address = self.ctx, session.ticket, session.address
        self.tickets[ticket] = session
        ctx.admission.wait(ticket, address, session.pages)
        contact = 0.0 if receiver.connected else self._contact
        ctx.deadlines.set(("room", ticket), ctx.now + max(session.wait_s, contact))
        self.connect(receiver)
        self.admit()
        if receiver.connected and ticket in ctx.admission.waits_for(address):
            ctx.admission.waits += 1

    def receiver(self, address: str) -> Receiver:
        """Return what is known of an address."""
        if address not in self.receivers:
            self.receivers[address] = Receiver(address, PeerBreaker(self.breaker_ttl))
        return self.receivers[address]

    def _wait_s(self, compute_s: float) -> float:
        """Return how long a transfer may wait for room before it begins. A request that waited half as long as
        computing takes, and is then computed at the receiver, has the first token well within twice the time that it
        takes anywhere.
        """
        limits = self._limits
        if self._room_wait is not None:
            return self._room_wait
        return min(max(compute_s * limits.share or limits.unknown, limits.shortest), limits.room)

    @property
    def _contact(self) -> float:
        """Return how long a first connection may take."""
        return self._limits.contact if self._room_wait is None else 0.0

    def _try_again(self, receiver: Receiver, ticket: str) -> None:
        """Look for a receiver that could not be reached beside the requests, none of which waits for it."""
        left = receiver.failed_at + self._limits.backoff - self.ctx.now
        if left <= 0:
            self.connect(receiver)
        self._tell_refused(ticket, "connect", f"{receiver.address}: {receiver.failure}", max(left, 0.0))

    def _objection(self, wanted: SendWanted) -> tuple[str, str] | None:
        ctx, pages = self.ctx, len(wanted.identities)
        if self.draining:
            return "draining", self.draining
        if self._released.take(wanted.ticket):
            return "released", "the ticket was given up before it came"
        if wanted.ticket in self.tickets or wanted.ticket in self.empty:
            return "duplicate", f"ticket {wanted.ticket!r} is in hand already"
        if wanted.tokens < 0 or pages != page_count(wanted.tokens, ctx.page_tokens):
            tokens = format_count(wanted.tokens, "token")
            return "internal", f"{pages} identities for {tokens} in pages of {ctx.page_tokens}"
        if pages > MOST_PAGES:
            return "too large", f"{format_count(pages, 'KV page')}; at most {MOST_PAGES} are handed over at once"
        if not ctx.admission.fits_ever(pages):
            return (
                "too large",
                f"{format_count(pages, 'KV page is', 'KV pages are')} more than the transfer buffer holds "
                f"({ctx.admission.total}); raise pd_buffer_size",
            )
        return None

    def _address(self, document: bytes) -> str:
        if document != self._document[0]:
            self._document = (document, self._read_address(document))
        return self._document[1]

    def _read_address(self, document: bytes) -> str:
        peer = decode_published(document)
        if peer.role != "receiver":
            raise ValueError(f"it is a {peer.role}'s")
        if peer.mode != self._mode:
            raise ValueError(f"it is set up for {peer.mode}, this engine for {self._mode}")
        if not peer.alloc:
            raise ValueError("it names no alloc address")
        return peer.alloc[0]

    # Room and offers

    def connect(self, receiver: Receiver) -> None:
        """Open a connection, unless there is one, or will be."""
        if receiver.connected or receiver.connecting:
            return
        receiver.connecting = True
        self.ctx.deadlines.set(("connect", receiver.address), self.ctx.now + self._limits.connect)
        self.ctx.act(Connect(receiver.address))

    def _may_go(self, address: str, ticket: str) -> bool:
        receiver = self.receivers[address]
        return receiver.connected and receiver.breaker.ask(ticket, self.ctx.now) == "go"

    def admit(self) -> None:
        """Offer those whose turn it is now."""
        while (ticket := self.ctx.admission.admit(self._may_go, max(len(self.receivers), 1))) is not None:
            self._offer(self.tickets[ticket])

    def _offer(self, session: SendSession) -> None:
        ctx, receiver = self.ctx, self.receivers[session.address]
        assert receiver.process is not None
        receiver.breaker.go(session.ticket)
        session.enter(SendState.OFFERED)
        session.pull_id, session.process = self.next_pull, receiver.process
        self.next_pull += 1
        self.pulls[session.pull_id] = session
        ctx.deadlines.set(("reply", session.ticket), ctx.now + self._limits.reply)
        left = max(session.begun + session.wait_s - ctx.now, 0.0)
        ctx.deadlines.set(("room", session.ticket), ctx.now + left + self._limits.answer)
        pages = (session.tokens, ctx.page_tokens, session.identities)
        offer = Offer(session.pull_id, session.ticket, *pages, ctx.own.done_address, ctx.leases.ttl, left)
        ctx.send(receiver.process.made, offer)

    def refuse(
        self, session: SendSession, code: str, reason: str, retry_after: float | None = None, *, notify: bool = True
    ) -> None:
        """End a transfer before it was admitted."""
        self._drop(session, reason, notify=notify)
        self._tell_refused(session.ticket, code, reason, retry_after)
        self.admit()

    def refuse_waiting(self, address: str, code: str, reason: str) -> None:
        """End all transfers that wait for an address."""
        for ticket in self.ctx.admission.waits_for(address):
            self.refuse(self.tickets[ticket], code, reason, self._limits.backoff)
        self.tidy(address)

    def open_breaker(self, receiver: Receiver, retry_after: float = 0.0) -> float:
        """Take note that a receiver had no room, and offer it nothing for a while: seconds, 0 if nothing changes."""
        receiver.breaker.failed(self.ctx.now, retry_after)
        self.ctx.counter.breaker_opens += receiver.breaker.open
        return receiver.breaker.left(self.ctx.now)

    def refuse_by_breaker(self, receiver: Receiver, left: float) -> None:
        """End those that wait for a receiver to which nothing is offered."""
        for ticket in self.ctx.admission.waits_for(receiver.address) if receiver.breaker.open else ():
            self.refuse(self.tickets[ticket], "breaker", "the receiver has no room", left)

    def _tell_refused(self, ticket: str, code: str, reason: str, retry_after: float | None = None) -> None:
        self.ctx.counter.refused[code] += 1
        self.ctx.tell(SendRefused(self.ctx.now, ticket, reason, retry_after))

    def _drop(self, session: SendSession, reason: str, *, notify: bool = True) -> None:
        """Forget a transfer that was not admitted; the receiver may have made room for it."""
        ctx = self.ctx
        del self.tickets[session.ticket]
        session.enter(SendState.ENDED)
        ctx.deadlines.drop(("room", session.ticket))
        ctx.deadlines.drop(("reply", session.ticket))
        ctx.admission.leave(session.ticket, session.address)
        ctx.admission.release(session.ticket)
        self.receivers[session.address].breaker.spared(session.ticket)
        if session.process is not None:
            del self.pulls[session.pull_id]
            ctx.leases.end(session.pull_id)
            ctx.ended.add(session.pull_id, session.process.incarnation, "called off")
            if notify:
                ctx.send(session.process.made, Abandon(session.pull_id, reason))
            self.on_removed(session.process)

    # Computed

    def _on_computed(self, message: Computed) -> None:
        ticket = message.ticket
        if ticket in self.empty and message.last:
            self._return_empty(ticket)
        elif (session := self.tickets.get(ticket)) is not None and session.is_admitted:
            session.add(message.first, message.blocks, message.last)
            self.look(session)

    def _on_released(self, message: Released) -> None:
        """End a transfer whose receiver's request will not come. What is still computed of it is not announced."""
        ticket, reason = message.ticket, f"the ticket was given up: {message.reason}"
        session = self.tickets.get(ticket)
        if ticket in self.empty:
            self._return_empty(ticket)
        elif session is None:
            self._released.add(ticket)
        elif not session.is_admitted:
            self.refuse(session, "released", reason)
        else:
            session.call_off("released", reason)
            session.pump()
            self.look(session)

    def _on_abandoned(self, message: Abandoned) -> None:
        session = self.tickets.get(message.ticket)
        if message.ticket in self.empty:
            self._return_empty(message.ticket)
        elif session is not None and not session.is_admitted:
            self._drop(session, message.reason)
            self.ctx.tell(Returned(self.ctx.now, session.ticket))
            self.admit()
        elif session is not None:
            session.stop_computing("abandoned", message.reason)
            self.look(session)

    def _return_empty(self, ticket: str) -> None:
        self.empty.discard(ticket)
        self.ctx.tell(Returned(self.ctx.now, ticket))

    def drain(self, reason: str) -> None:
        """Take no more, and end those that are not announced to the end."""
        self.draining = reason
        for ticket in sorted(self.empty):
            self._return_empty(ticket)
        for session in list(self.tickets.values()):
            if session.is_admitted:
                session.stop_computing("draining", reason)
                self.look(session)
            else:
                self.refuse(session, "draining", reason)

    # Ends

    def look(self, session: SendSession) -> None:
        """See to what follows, after anything happened to a transfer: whose copies it waits for, and whether it is
        over."""
        ctx = self.ctx
        for token in (*session.copies, *session.sends):
            self.going[token] = session
        if session.returned and self.tickets.get(session.ticket) is session:
            del self.tickets[session.ticket]
        if session.is_read_out and not ctx.push:
            ctx.leases.end(session.pull_id)
        if session.is_finished and self.pulls.get(session.pull_id) is session:
            del self.pulls[session.pull_id]
            session.enter(SendState.ENDED)
            ctx.leases.end(session.pull_id)
            assert session.process is not None
            ctx.ended.add(session.pull_id, session.process.incarnation, session.end)
            self.on_removed(session.process)
        if ctx.admission.waiting:
            self.admit()

    def tidy(self, address: str) -> None:
        """Forget an address that means nothing any more."""
        receiver = self.receivers.get(address)
        idle = receiver is not None and receiver.process is None and not receiver.connecting
        if receiver is None or not idle or self.ctx.admission.waits_for(address):
            return
        if receiver.breaker.left(self.ctx.now) or self.ctx.now < receiver.failed_at + self._limits.backoff:
            later = self.ctx.now + max(self._limits.backoff, self.breaker_ttl)
            self.ctx.deadlines.set(("tidy", address), later)
        else:
            del self.receivers[address]

    # Time

    def expire_wait(self, session: SendSession) -> None:
        """End a transfer that has not begun, and has waited as long as it may."""
        waited = f"within {session.wait_s:.3g} s, by what computing its prompt takes (--pd-room-wait)"
        if session.process is not None:
            late = f"within {session.wait_s + self._limits.answer:.3g} s"
            return self.expire_offer(session, f"the receiver did not answer whether it has room {late}")
        if not self.receivers[session.address].connected:
            return self.refuse(session, "connect", f"{session.address}: no connection {waited}")
        self._full_until = self.ctx.now + self.breaker_ttl
        reason = f"the transfer buffer was full: nothing became free {waited}"
        return self.refuse(session, "no room", reason, self._limits.backoff)

    def expire_offer(self, session: SendSession, reason: str = "the receiver did not answer the offer") -> None:
        """End a transfer whose offer was not answered in time: others are spared the wait for a while."""
        receiver = self.receivers[session.address]
        self.open_breaker(receiver)
        self.refuse(session, "no answer", reason, self.breaker_ttl)
        self.refuse_by_breaker(receiver, receiver.breaker.left(self.ctx.now))
