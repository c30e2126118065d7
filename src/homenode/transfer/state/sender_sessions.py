"""The sender's hand-overs before a receiver has taken them: they wait for a connection and for room, and are
offered."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from homenode.transfer.scheduler_events import SendAdmitted, SendRefused, SendWanted
from homenode.transfer.setup import published
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.state.deadlines import ReleasedTickets
from homenode.transfer.state.machine import Connect, Limits, Own
from homenode.transfer.state.pages import page_count
from homenode.transfer.state.peers import PeerBreaker, PeerProcess
from homenode.transfer.state.send_session import SendSession
from homenode.transfer.state.sender_context import SenderContext
from homenode.transfer.wire.message import MOST_PAGES, Abandon, Offer
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
    """Hand-overs until they are offered, and how they are forgotten."""

    def __init__(self, own: Own, settings: TransferConfig, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self.state = SenderContext(own, settings, self._limits)
        self._mode = "push" if self.state.push else "pull-delay" if settings.pd_delay_pull else "pull-eager"
        self._breaker_ttl = settings.pd_alloc_fail_backoff_ttl
        self._room_wait = settings.pd_room_wait
        self._full_until = -1e9  # somebody has waited for room here in vain; until then nobody else does
        self._receivers: dict[str, Receiver] = {}
        self.tickets: dict[str, SendSession] = {}
        self.pulls: dict[int, SendSession] = {}
        self.going: dict[int, SendSession] = {}  # of copies and sends
        self._empty: set[str] = set()  # tickets of prompts of one token
        self._next_pull = 0
        self._draining = ""
        self._document = (b"", "")  # the last one, and the address it names: usually it is the next one too
        self._released = ReleasedTickets(self._limits.remembered)

    # Room and offers

    def _wanted(self, wanted: SendWanted) -> None:
        objection = self._objection(wanted)
        if objection is not None:
            code, reason = objection
            return self._tell_refused(wanted.ticket, code, reason)
        if not wanted.tokens:
            self._empty.add(wanted.ticket)
            return self.state.tell(SendAdmitted(self.state.now, wanted.ticket))
        try:
            address = self._address(wanted.peer)
        except (msgspec.DecodeError, ValueError) as error:
            return self._tell_refused(
                wanted.ticket, "peer", f"the receiver's published document cannot be used: {error}"
            )
        now = self.state.now
        receiver = self._receivers.get(address)
        if receiver is None:
            receiver = self._receivers[address] = Receiver(address, PeerBreaker(self._breaker_ttl))
        outgoing = SendSession(self.state, wanted.ticket, address, wanted.tokens, wanted.identities, now)
        if receiver.breaker.ask(wanted.ticket, now) == "refuse":
            return self._tell_refused(
                wanted.ticket, "breaker", "the receiver had no room a moment ago", receiver.breaker.left(now)
            )
        if not receiver.connected and receiver.failure:
            return self._try_again(receiver, wanted.ticket)
        if now < self._full_until and not self.state.admission.has_room(outgoing.pages):
            left = self._full_until - now
            return self._tell_refused(wanted.ticket, "no room", "the transfer buffer was full a moment ago", left)
        self.tickets[wanted.ticket] = outgoing
        self.state.admission.wait(wanted.ticket, address, outgoing.pages)
        outgoing.patience = self._patience(wanted.compute_s)
        contact = 0.0 if receiver.connected else self._contact
        self.state.deadlines.set(("room", wanted.ticket), now + max(outgoing.patience, contact))
        self._connect(receiver)
        self._admit()
        if receiver.connected and wanted.ticket in self.state.admission.waits_for(address):
            self.state.admission.waits += 1
        return None

    def _patience(self, compute_s: float) -> float:
        """How long a hand-over may wait for room before it begins. Whoever waited half as long as computing takes, and
        then computes at the receiver, has the first token well within twice the time that it takes anywhere.
        """
        limits = self._limits
        if self._room_wait is not None:
            return self._room_wait
        return min(max(compute_s * limits.share or limits.unknown, limits.shortest), limits.room)

    @property
    def _contact(self) -> float:
        """How long a first connection may take."""
        return self._limits.contact if self._room_wait is None else 0.0

    def _try_again(self, receiver: Receiver, ticket: str) -> None:
        """A receiver that could not be reached is looked for beside the requests, none of which waits for it."""
        left = receiver.failed_at + self._limits.backoff - self.state.now
        if left <= 0:
            self._connect(receiver)
        self._tell_refused(ticket, "connect", f"{receiver.address}: {receiver.failure}", max(left, 0.0))

    def _objection(self, wanted: SendWanted) -> tuple[str, str] | None:
        state, pages = self.state, len(wanted.identities)
        if self._draining:
            return "draining", self._draining
        if self._released.take(wanted.ticket):
            return "released", "the ticket was given up before it came"
        if wanted.ticket in self.tickets or wanted.ticket in self._empty:
            return "duplicate", f"ticket {wanted.ticket!r} is in hand already"
        if wanted.tokens < 0 or pages != page_count(wanted.tokens, state.page_tokens):
            return (
                "internal",
                f"{pages} identities for {format_count(wanted.tokens, 'token')} in pages of {state.page_tokens}",
            )
        if pages > MOST_PAGES:
            return "too large", f"{format_count(pages, 'KV page')}; at most {MOST_PAGES} are handed over at once"
        if not state.admission.fits_ever(pages):
            return (
                "too large",
                f"{format_count(pages, 'KV page is', 'KV pages are')} more than the transfer buffer holds "
                f"({state.admission.total}); raise pd_buffer_size",
            )
        return None

    def _address(self, document: bytes) -> str:
        if document == self._document[0]:
            return self._document[1]
        address = self._read_address(document)
        self._document = (document, address)
        return address

    def _read_address(self, document: bytes) -> str:
        peer = published.decode(document)
        if peer.role != "receiver":
            raise ValueError(f"it is a {peer.role}'s")
        if peer.mode != self._mode:
            raise ValueError(f"it is set up for {peer.mode}, this engine for {self._mode}")
        if not peer.alloc:
            raise ValueError("it names no alloc address")
        return peer.alloc[0]

    def _connect(self, receiver: Receiver) -> None:
        if receiver.connected or receiver.connecting:
            return
        receiver.connecting = True
        self.state.deadlines.set(("connect", receiver.address), self.state.now + self._limits.connect)
        self.state.act(Connect(receiver.address))

    def _may_go(self, address: str, ticket: str) -> bool:
        receiver = self._receivers[address]
        return receiver.connected and receiver.breaker.ask(ticket, self.state.now) == "go"

    def _admit(self) -> None:
        """Whoever's turn it is now."""
        while (ticket := self.state.admission.admit(self._may_go, max(len(self._receivers), 1))) is not None:
            self._offer(self.tickets[ticket])

    def _offer(self, outgoing: SendSession) -> None:
        state, receiver = self.state, self._receivers[outgoing.address]
        assert receiver.process is not None
        receiver.breaker.go(outgoing.ticket)
        outgoing.pull_id, outgoing.process = self._next_pull, receiver.process
        self._next_pull += 1
        self.pulls[outgoing.pull_id] = outgoing
        state.deadlines.set(("reply", outgoing.ticket), state.now + self._limits.reply)
        left = max(outgoing.begun + outgoing.patience - state.now, 0.0)
        state.deadlines.set(("room", outgoing.ticket), state.now + left + self._limits.answer)
        lease = state.leases.ttl
        done = state.own.done_address
        offer = Offer(
            outgoing.pull_id,
            outgoing.ticket,
            outgoing.tokens,
            state.page_tokens,
            outgoing.identities,
            done,
            lease,
            left,
        )
        state.send(receiver.process.made, offer)

    def _refuse(
        self, outgoing: SendSession, code: str, reason: str, retry_after: float | None = None, *, notify: bool = True
    ) -> None:
        """Before it was admitted."""
        self._drop(outgoing, reason, notify=notify)
        self._tell_refused(outgoing.ticket, code, reason, retry_after)
        self._admit()

    def _tell_refused(self, ticket: str, code: str, reason: str, retry_after: float | None = None) -> None:
        self.state.tally.refused[code] += 1
        self.state.tell(SendRefused(self.state.now, ticket, reason, retry_after))

    def _drop(self, outgoing: SendSession, reason: str, *, notify: bool = True) -> None:
        """Forget a hand-over that was not admitted; the receiver may have made room for it."""
        state = self.state
        del self.tickets[outgoing.ticket]
        state.deadlines.drop(("room", outgoing.ticket))
        state.deadlines.drop(("reply", outgoing.ticket))
        state.admission.leave(outgoing.ticket, outgoing.address)
        state.admission.release(outgoing.ticket)
        self._receivers[outgoing.address].breaker.spared(outgoing.ticket)
        if outgoing.process is not None:
            del self.pulls[outgoing.pull_id]
            state.leases.end(outgoing.pull_id)
            state.ended.add(outgoing.pull_id, outgoing.process.incarnation, "called off")
            if notify:
                state.send(outgoing.process.made, Abandon(outgoing.pull_id, reason))
            self._reap(outgoing.process)

    def _refuse_waiting(self, address: str, code: str, reason: str) -> None:
        for ticket in self.state.admission.waits_for(address):
            self._refuse(self.tickets[ticket], code, reason, self._limits.backoff)
        self._tidy(address)

    # What is over

    def _with(self, process: PeerProcess) -> list[SendSession]:
        return [outgoing for outgoing in self.pulls.values() if outgoing.process is process]

    def _reap(self, process: PeerProcess) -> None:
        """Let go of ended connections once nothing hangs on them; of those of a process that broke the protocol too."""
        if process.banned and process.live and not self._with(process):
            for peer in sorted(process.live):
                self.state.processes.lost(peer, False)
        if process.lost and not self._with(process):
            self.state.close(process, "done with")
            for receiver in list(self._receivers.values()):
                if receiver.process is process and not process.live:
                    receiver.process = None
                    self._tidy(receiver.address)

    def _tidy(self, address: str) -> None:
        """Forget an address that means nothing any more."""
        receiver = self._receivers.get(address)
        idle = receiver is not None and receiver.process is None and not receiver.connecting
        if receiver is None or not idle or self.state.admission.waits_for(address):
            return
        if receiver.breaker.left(self.state.now) or self.state.now < receiver.failed_at + self._limits.backoff:
            self.state.deadlines.set(("tidy", address), self.state.now + max(self._limits.backoff, self._breaker_ttl))
        else:
            del self._receivers[address]

    def _look(self, outgoing: SendSession) -> None:
        """After anything happened to a hand-over: whose copies it waits for, and whether it is over."""
        state = self.state
        for token in (*outgoing.copies, *outgoing.sends):
            self.going[token] = outgoing
        if outgoing.returned and self.tickets.get(outgoing.ticket) is outgoing:
            del self.tickets[outgoing.ticket]
        if outgoing.read and not state.push:
            state.leases.end(outgoing.pull_id)
        if outgoing.finished and self.pulls.get(outgoing.pull_id) is outgoing:
            del self.pulls[outgoing.pull_id]
            state.leases.end(outgoing.pull_id)
            assert outgoing.process is not None
            state.ended.add(outgoing.pull_id, outgoing.process.incarnation, outgoing.end)
            self._reap(outgoing.process)
        if state.admission.waiting:
            self._admit()
