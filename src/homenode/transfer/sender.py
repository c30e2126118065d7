"""The sending machine: admits hand-overs, offers them, and answers receivers. Without I/O and without a clock; see `machine`.

A hand-over waits for a connection and for room (bounded, fair over receivers), is offered, and with the receiver's answer goes to the
scheduler, which computes. From then on it is an `Outgoing`. Every wait has a deadline.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from homenode.transfer import published
from homenode.transfer.breaker import Breaker
from homenode.transfer.ended import Released as ReleasedTickets
from homenode.transfer.figures import TransferFigures
from homenode.transfer.limits import Limits
from homenode.transfer.machine import (
    Action,
    Close,
    Connect,
    Connected,
    ConnectFailed,
    Copied,
    FromEngine,
    FromPeer,
    Input,
    Own,
    PeerLost,
    Sent,
)
from homenode.transfer.message import (
    MOST_PAGES,
    Abandon,
    Cancel,
    Data,
    Done,
    DoneAck,
    Drained,
    Message,
    Offer,
    OfferReply,
    Read,
    Renew,
    Renewed,
    Stored,
)
from homenode.transfer.outgoing import Outgoing
from homenode.transfer.pages import difference, page_count
from homenode.transfer.processes import Process
from homenode.transfer.seam import Abandoned, Computed, Released, Returned, SendAdmitted, SendRefused, SendWanted, ToAgent
from homenode.transfer.sending import Sending
from homenode.transfer.settings import TransferConfig


@dataclass
class _Receiver:
    """One alloc address."""

    address: str
    breaker: Breaker
    process: Process | None = None
    connecting: bool = False
    failed_at: float = -1e9
    failure: str = ""

    @property
    def connected(self) -> bool:
        return self.process is not None and self.process.made is not None and self.process.address == self.address


class SenderMachine:
    """Hands KV over to any number of receivers."""

    def __init__(self, own: Own, settings: TransferConfig, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._state = Sending(own, settings, self._limits)
        self._mode = "push" if self._state.push else "pull-delay" if settings.pd_delay_pull else "pull-eager"
        self._breaker_ttl = settings.pd_alloc_fail_backoff_ttl
        self._receivers: dict[str, _Receiver] = {}
        self._tickets: dict[str, Outgoing] = {}
        self._pulls: dict[int, Outgoing] = {}
        self._going: dict[int, Outgoing] = {}  # of copies and sends
        self._empty: set[str] = set()  # tickets of prompts of one token
        self._next_pull = 0
        self._draining = ""
        self._released = ReleasedTickets(self._limits.remembered)

    # What the agent calls

    def handle(self, input: Input, now: float) -> list[Action]:
        """Never raises for what another process says."""
        self._begin(now)
        match input:
            case FromEngine(message):
                self._from_engine(message)
            case FromPeer(peer, message):
                self._from_peer(peer, message)
            case Connected():
                self._connected(input)
            case ConnectFailed(address, reason):
                self._connect_failed(address, reason)
            case PeerLost(peer, reason, dead):
                self._lost(peer, reason, dead)
            case Copied(token, digests, reason):
                if (outgoing := self._going.pop(token, None)) is not None:
                    outgoing.copied(token, digests, reason)
                    self._look(outgoing)
            case Sent(token, ok):
                if (outgoing := self._going.pop(token, None)) is not None:
                    outgoing.sent(token, ok)
                    self._look(outgoing)
        return self._end()

    def tick(self, now: float) -> list[Action]:
        """Whatever is due by now."""
        self._begin(now)
        while (key := self._state.deadlines.due(now)) is not None:
            self._due(key)
        return self._end()

    def next_deadline(self) -> float | None:
        return self._state.deadlines.next()

    def drain(self, now: float) -> list[Action]:
        """No new hand-overs; those whose pages are all announced may still be read. `idle` once nothing is left."""
        self._begin(now)
        self._draining = "the engine is shutting down"
        for outgoing in list(self._tickets.values()):
            if not outgoing.admitted:
                self._refuse(outgoing, "draining", self._draining)
            elif outgoing.told < outgoing.pages:
                outgoing.call_off("draining", self._draining)
                outgoing.pump()
                self._look(outgoing)
        return self._end()

    @property
    def idle(self) -> bool:
        return not self._tickets and not self._pulls

    def figures(self) -> TransferFigures:
        state = self._state
        return state.tally.figures(
            pinned=state.ledger.pinned, waiting=state.admission.waiting, waits=state.admission.waits, peers=len(state.processes)
        )

    # The scheduler

    def _from_engine(self, message: ToAgent) -> None:
        match message:
            case SendWanted():
                self._wanted(message)
            case Computed(ticket, first, blocks, last):
                if ticket in self._empty and last:
                    self._return_empty(ticket)
                elif (outgoing := self._tickets.get(ticket)) is not None and outgoing.admitted:
                    outgoing.add(first, blocks, last)
                    self._look(outgoing)
            case Released(ticket) if ticket not in self._tickets and ticket not in self._empty:
                self._released.add(ticket)
            case Released(ticket, reason) if ticket not in self._empty:
                self._given_up(self._tickets[ticket], reason)
            case Abandoned(ticket, reason) | Released(ticket, reason):
                if ticket in self._empty:
                    self._return_empty(ticket)
                elif (outgoing := self._tickets.get(ticket)) is not None:
                    self._abandoned(outgoing, reason)

    def _wanted(self, wanted: SendWanted) -> None:
        objection = self._objection(wanted)
        if objection is not None:
            code, reason = objection
            return self._tell_refused(wanted.ticket, code, reason)
        if not wanted.tokens:
            self._empty.add(wanted.ticket)
            return self._state.tell(SendAdmitted(self._state.now, wanted.ticket))
        try:
            address = self._address(wanted.peer)
        except (msgspec.DecodeError, ValueError) as error:
            return self._tell_refused(wanted.ticket, "peer", f"the receiver's published document cannot be used: {error}")
        now = self._state.now
        receiver = self._receivers.setdefault(address, _Receiver(address, Breaker(self._breaker_ttl)))
        outgoing = Outgoing(self._state, wanted.ticket, address, wanted.tokens, wanted.identities, now)
        if receiver.breaker.ask(wanted.ticket, now) == "refuse":
            return self._tell_refused(wanted.ticket, "breaker", "the receiver had no room a moment ago", receiver.breaker.left(now))
        if not receiver.connected and now < receiver.failed_at + self._limits.backoff:
            left = receiver.failed_at + self._limits.backoff - now
            return self._tell_refused(wanted.ticket, "connect", f"{address}: {receiver.failure}", left)
        self._tickets[wanted.ticket] = outgoing
        self._state.admission.wait(wanted.ticket, address, outgoing.pages)
        self._state.deadlines.set(("room", wanted.ticket), now + self._limits.room)
        self._connect(receiver)
        self._admit()
        if receiver.connected and wanted.ticket in self._state.admission.waits_for(address):
            self._state.admission.waits += 1
        return None

    def _objection(self, wanted: SendWanted) -> tuple[str, str] | None:
        state, pages = self._state, len(wanted.identities)
        if self._draining:
            return "draining", self._draining
        if self._released.take(wanted.ticket):
            return "released", "the ticket was given up before it came"
        if wanted.ticket in self._tickets or wanted.ticket in self._empty:
            return "duplicate", f"ticket {wanted.ticket!r} is in hand already"
        if wanted.tokens < 0 or pages != page_count(wanted.tokens, state.page_tokens):
            return "internal", f"{pages} identities for {wanted.tokens} tokens in pages of {state.page_tokens}"
        if pages > MOST_PAGES:
            return "too large", f"{pages} KV pages; at most {MOST_PAGES} are handed over at once"
        if not state.admission.fits_ever(pages):
            return "too large", f"{pages} KV pages are more than the transfer buffer holds ({state.admission.total}); raise pd_buffer_size"
        return None

    def _address(self, document: bytes) -> str:
        peer = published.decode(document)
        if peer.role != "receiver":
            raise ValueError(f"it is a {peer.role}'s")
        if peer.mode != self._mode:
            raise ValueError(f"it is set up for {peer.mode}, this engine for {self._mode}")
        if not peer.alloc:
            raise ValueError("it names no alloc address")
        return peer.alloc[0]

    def _abandoned(self, outgoing: Outgoing, reason: str) -> None:
        if not outgoing.admitted:
            self._drop(outgoing, reason)
            self._state.tell(Returned(self._state.now, outgoing.ticket))
            return self._admit()
        outgoing.computing = False
        if outgoing.told < outgoing.pages:
            outgoing.call_off("abandoned", reason)
        outgoing.pump()
        self._look(outgoing)
        return None

    def _given_up(self, outgoing: Outgoing, reason: str) -> None:
        """Nobody will ask for it at the receiver. What the scheduler still computes of it is not told."""
        if not outgoing.admitted:
            return self._refuse(outgoing, "released", f"the ticket was given up: {reason}")
        outgoing.call_off("released", f"the ticket was given up: {reason}")
        outgoing.pump()
        return self._look(outgoing)

    def _return_empty(self, ticket: str) -> None:
        self._empty.discard(ticket)
        self._state.tell(Returned(self._state.now, ticket))

    # Room and offers

    def _connect(self, receiver: _Receiver) -> None:
        if receiver.connected or receiver.connecting:
            return
        receiver.connecting = True
        self._state.deadlines.set(("connect", receiver.address), self._state.now + self._limits.connect)
        self._state.act(Connect(receiver.address))

    def _may_go(self, address: str, ticket: str) -> bool:
        receiver = self._receivers[address]
        return receiver.connected and receiver.breaker.ask(ticket, self._state.now) == "go"

    def _admit(self) -> None:
        """Whoever's turn it is now."""
        while (ticket := self._state.admission.admit(self._may_go, max(len(self._receivers), 1))) is not None:
            self._offer(self._tickets[ticket])

    def _offer(self, outgoing: Outgoing) -> None:
        state, receiver = self._state, self._receivers[outgoing.address]
        assert receiver.process is not None
        receiver.breaker.go(outgoing.ticket)
        outgoing.pull_id, outgoing.process = self._next_pull, receiver.process
        self._next_pull += 1
        self._pulls[outgoing.pull_id] = outgoing
        state.deadlines.drop(("room", outgoing.ticket))
        state.deadlines.set(("reply", outgoing.ticket), state.now + self._limits.reply)
        lease = state.leases.ttl
        done = state.own.done_address
        offer = Offer(outgoing.pull_id, outgoing.ticket, outgoing.tokens, state.page_tokens, outgoing.identities, done, lease)
        state.send(receiver.process.made, offer)

    def _replied(self, outgoing: Outgoing, reply: OfferReply) -> None:
        state, receiver = self._state, self._receivers[outgoing.address]
        process = outgoing.process
        assert process is not None
        if reply.alloc_failed:
            receiver.breaker.failed(state.now, reply.retry_after_s)
            state.tally.breaker_opens += receiver.breaker.open
            left = receiver.breaker.left(state.now) or reply.retry_after_s
            reason = f"the receiver has no room ({reply.free_pages} pages free): {reply.reason}"
            self._refuse(outgoing, "no room", reason, left, notify=False)
            for ticket in state.admission.waits_for(receiver.address) if receiver.breaker.open else ():
                self._refuse(self._tickets[ticket], "breaker", "the receiver has no room", left)
            return None
        if reply.refused:
            return self._refuse(outgoing, "refused", reply.reason or "the receiver refused", notify=False)
        objection = outgoing.objection(reply)
        if objection is not None:
            return self._violation(process, "offer-reply", objection)
        receiver.breaker.succeeded()
        state.deadlines.drop(("reply", outgoing.ticket))
        state.leases.grant(outgoing.pull_id, state.now)
        outgoing.open(reply)
        if outgoing.early and outgoing.held < outgoing.pages:
            return self._refuse(outgoing, "refused", "the receiver called it off", notify=False)
        state.tell(SendAdmitted(state.now, outgoing.ticket, outgoing.held))
        if outgoing.early:
            outgoing.done()
        return self._look(outgoing)

    def _refuse(self, outgoing: Outgoing, code: str, reason: str, retry_after: float | None = None, *, notify: bool = True) -> None:
        """Before it was admitted."""
        self._drop(outgoing, reason, notify=notify)
        self._tell_refused(outgoing.ticket, code, reason, retry_after)
        self._admit()

    def _tell_refused(self, ticket: str, code: str, reason: str, retry_after: float | None = None) -> None:
        self._state.tally.refused[code] += 1
        self._state.tell(SendRefused(self._state.now, ticket, reason, retry_after))

    def _drop(self, outgoing: Outgoing, reason: str, *, notify: bool = True) -> None:
        """Forget a hand-over that was not admitted; the receiver may have made room for it."""
        state = self._state
        del self._tickets[outgoing.ticket]
        state.deadlines.drop(("room", outgoing.ticket))
        state.deadlines.drop(("reply", outgoing.ticket))
        state.admission.leave(outgoing.ticket, outgoing.address)
        state.admission.release(outgoing.ticket)
        self._receivers[outgoing.address].breaker.spared(outgoing.ticket)
        if outgoing.process is not None:
            del self._pulls[outgoing.pull_id]
            state.leases.end(outgoing.pull_id)
            state.ended.add(outgoing.pull_id, outgoing.process.incarnation, "called off")
            if notify:
                state.send(outgoing.process.made, Abandon(outgoing.pull_id, reason))
            self._reap(outgoing.process)

    # Connections

    def _connected(self, connected: Connected) -> None:
        state = self._state
        if connected.address and connected.address in self._receivers:
            self._receivers[connected.address].connecting = False
            state.deadlines.drop(("connect", connected.address))
        if connected.hello.role != "receiver":
            state.act(Close(connected.peer, "this engine sends KV, and so does the other"))
            return self._refuse_waiting(connected.address, "peer", "the engine there is no receiver")
        different = next(filter(None, (difference(state.layout, buffer.layout) for buffer in connected.hello.buffers)), None)
        if different is not None:
            state.act(Close(connected.peer, different))
            return self._refuse_waiting(connected.address, "peer", different)
        process = state.processes.connected(connected.peer, connected.hello, connected.address, state.now)
        if connected.address:
            receiver = self._receivers.setdefault(connected.address, _Receiver(connected.address, Breaker(self._breaker_ttl)))
            receiver.process = process
        return self._admit()

    def _connect_failed(self, address: str, reason: str) -> None:
        receiver = self._receivers.get(address)
        if receiver is None:
            return
        receiver.connecting = False
        receiver.failed_at, receiver.failure = self._state.now, reason
        self._state.deadlines.drop(("connect", address))
        self._refuse_waiting(address, "connect", f"{address}: {reason}")

    def _refuse_waiting(self, address: str, code: str, reason: str) -> None:
        for ticket in self._state.admission.waits_for(address):
            self._refuse(self._tickets[ticket], code, reason, self._limits.backoff)
        self._tidy(address)

    def _lost(self, peer: int, reason: str, dead: bool) -> None:
        state = self._state
        process = state.processes.lost(peer, dead)
        if process is not None:
            self._after_loss(process, reason)

    def _after_loss(self, process: Process, reason: str) -> None:
        state = self._state
        if process.made is None:
            for outgoing in self._with(process):
                self._lost_for(outgoing, process, reason)
        for receiver in list(self._receivers.values()):
            if receiver.process is process and not receiver.connected and state.admission.waits_for(receiver.address):
                self._connect(receiver)
        self._reap(process)
        self._admit()

    def _lost_for(self, outgoing: Outgoing, process: Process, reason: str) -> None:
        if not outgoing.admitted:
            return self._refuse(outgoing, "lost", f"the receiver was lost: {reason}", self._limits.backoff, notify=False)
        unreadable = process.dead or bool(process.banned) or (not self._state.shared and process.by_made is None)
        if outgoing.told == outgoing.pages and not unreadable and not self._state.push:
            return None  # it may still be read
        outgoing.gone("lost", f"the receiver was lost: {reason}", unreadable=unreadable)
        return self._look(outgoing)

    def _with(self, process: Process) -> list[Outgoing]:
        return [outgoing for outgoing in self._pulls.values() if outgoing.process is process]

    def _reap(self, process: Process) -> None:
        """Let go of ended connections once nothing hangs on them."""
        if process.lost and not self._with(process):
            self._state.close(process, "done with")
            for receiver in list(self._receivers.values()):
                if receiver.process is process and not process.live:
                    receiver.process = None
                    self._tidy(receiver.address)

    def _tidy(self, address: str) -> None:
        """Forget an address that means nothing any more."""
        receiver = self._receivers.get(address)
        idle = receiver is not None and receiver.process is None and not receiver.connecting
        if receiver is None or not idle or self._state.admission.waits_for(address):
            return
        if receiver.breaker.left(self._state.now) or self._state.now < receiver.failed_at + self._limits.backoff:
            self._state.deadlines.set(("tidy", address), self._state.now + max(self._limits.backoff, self._breaker_ttl))
        else:
            del self._receivers[address]

    def _violation(self, process: Process, code: str, reason: str) -> None:
        """It broke the protocol: its hand-overs end, its connections too."""
        self._state.tally.violations[code] += 1
        process.banned = reason
        self._cut(process, reason)

    def _cut(self, process: Process, reason: str) -> None:
        for peer in sorted(process.live):
            self._state.act(Close(peer, reason))
            self._state.processes.lost(peer, False)
            self._state.processes.closed(peer)
        self._after_loss(process, reason)

    # Frames

    def _from_peer(self, peer: int, message: Message) -> None:
        process = self._state.processes.of(peer)
        if process is None or process.banned or peer not in process.live:
            return
        process.heard = self._state.now
        match message:
            case Done(pull_id):
                self._done(peer, process, pull_id)
            case Renew(pull_ids):
                self._renew(peer, process, pull_ids)
            case OfferReply(pull_id) | Stored(pull_id) | Cancel(pull_id) | Read(pull_id):
                self._about(peer, process, pull_id, message)
            case _:
                self._violation(process, "wrong role", f"{type(message).__name__} from a receiver")

    def _about(self, peer: int, process: Process, pull_id: int, message: Message) -> None:
        outgoing = self._pulls.get(pull_id)
        if outgoing is not None and outgoing.process is not process:
            self._state.tally.forged += 1
            return self._violation(process, "forged", "a frame about another receiver's hand-over")
        if outgoing is None:
            return self._about_ended(peer, process, pull_id, message)
        match message:
            case OfferReply():
                if outgoing.admitted:
                    return self._violation(process, "offer-reply", "a second answer to an offer")
                return self._replied(outgoing, message)
            case Read() if self._state.push or self._state.shared or not outgoing.admitted or not outgoing.read_by(peer, message):
                return self._violation(process, "read", "pages were asked for that are not to be read")
            case Stored(_, pages, ok, reason) if not self._state.push or not outgoing.admitted or not outgoing.store(pages, ok, reason):
                return self._violation(process, "stored", "pages are said to be stored that were not sent")
            case Cancel() if not self._state.push:
                return self._violation(process, "cancel", "Cancel is for push")
            case Cancel() if not outgoing.admitted:
                self._state.send(peer, Drained(pull_id))
                return self._refuse(outgoing, "refused", "the receiver called it off", notify=False)
            case Cancel():
                outgoing.cancel()
        return self._look(outgoing)

    def _about_ended(self, peer: int, process: Process, pull_id: int, message: Message) -> None:
        if pull_id >= self._next_pull:
            return self._violation(process, "unknown", f"hand-over {pull_id} was never offered")
        match message:
            case Cancel():
                self._state.send(peer, Drained(pull_id))
            case Read(_, first):
                self._state.send(peer, Data(pull_id, first, 0, 0, [], False, epochs_ok=False))
            case OfferReply() | Stored():
                self._state.tally.late += 1
        return None

    def _done(self, peer: int, process: Process, pull_id: int) -> None:
        state, outgoing = self._state, self._pulls.get(pull_id)
        known = state.ended.how(pull_id) if outgoing is None else None
        whose = (
            outgoing.process.incarnation
            if outgoing is not None and outgoing.process is not None
            else known[0]
            if known
            else process.incarnation
        )
        if whose != process.incarnation:
            state.tally.forged += 1
            return self._violation(process, "forged", "Done for another receiver's hand-over")
        if outgoing is None:
            if known is None:
                state.tally.unknown += 1
            elif known[1] == "done":
                state.tally.duplicates += 1
            else:
                state.tally.late += 1
            status = "unknown" if known is None else "ok" if known[1] == "done" else "late"
            return state.send(peer, DoneAck(pull_id, status))  # type: ignore[arg-type]
        return self._done_now(peer, outgoing)

    def _done_now(self, peer: int, outgoing: Outgoing) -> None:
        state = self._state
        if not outgoing.admitted:
            state.send(peer, DoneAck(outgoing.pull_id, "early"))
            state.tally.early += not outgoing.early
            outgoing.early = True  # its answer to the offer is on its way, on the other channel
            return None
        if outgoing.read and outgoing.end == "expired":
            state.tally.late += 1
            return state.send(peer, DoneAck(outgoing.pull_id, "late"))
        if outgoing.read:
            state.tally.duplicates += 1
        elif outgoing.told < outgoing.pages:
            state.tally.early += 1
        state.send(peer, DoneAck(outgoing.pull_id, "ok" if outgoing.told == outgoing.pages else "early"))
        outgoing.done()
        return self._look(outgoing)

    def _renew(self, peer: int, process: Process, pull_ids: list[int]) -> None:
        state = self._state
        mine = [n for n in pull_ids if (o := self._pulls.get(n)) is not None and o.process is process]
        live = set(mine) - set(state.leases.renew((n for n in mine if self._pulls[n].admitted), state.now))
        state.send(peer, Renewed(state.leases.ttl, [n for n in pull_ids if n not in live]))

    # Time

    def _due(self, key: object) -> None:
        match key:
            case ("room", str(ticket)):
                self._refuse(self._tickets[ticket], "no room", "the transfer buffer was full for too long", self._limits.backoff)
            case ("reply", str(ticket)):
                outgoing = self._tickets[ticket]
                breaker = self._receivers[outgoing.address].breaker
                breaker.failed(self._state.now)
                self._state.tally.breaker_opens += breaker.open
                self._refuse(outgoing, "no answer", "the receiver did not answer the offer", self._breaker_ttl)
            case ("connect", str(address)):
                self._connect_failed(address, "no connection in time")
            case ("lease", int(pull_id)):
                self._expired(pull_id)
            case ("send", int(token)):
                self._stuck(token)
            case ("tidy", str(address)):
                self._tidy(address)

    def _expired(self, pull_id: int) -> None:
        self._state.leases.end(pull_id)
        outgoing = self._pulls[pull_id]
        if not (self._state.push and outgoing.over):
            self._state.tally.expired += 1
        outgoing.expire()
        self._look(outgoing)

    def _stuck(self, token: int) -> None:
        """The receiver takes no bytes: its connections end, and with them what is being sent."""
        outgoing = self._going.get(token)
        if outgoing is not None and outgoing.process is not None:
            self._cut(outgoing.process, "bytes were not taken in time")

    # Around each step

    def _begin(self, now: float) -> None:
        self._state.now, self._state.actions = now, []

    def _end(self) -> list[Action]:
        return self._state.actions

    def _look(self, outgoing: Outgoing) -> None:
        """After anything happened to a hand-over: whose copies it waits for, and whether it is over."""
        state = self._state
        for token in (*outgoing.copies, *outgoing.sends):
            self._going[token] = outgoing
        if outgoing.returned and self._tickets.get(outgoing.ticket) is outgoing:
            del self._tickets[outgoing.ticket]
        if outgoing.read and not state.push:
            state.leases.end(outgoing.pull_id)
        if outgoing.finished and self._pulls.get(outgoing.pull_id) is outgoing:
            del self._pulls[outgoing.pull_id]
            state.leases.end(outgoing.pull_id)
            assert outgoing.process is not None
            state.ended.add(outgoing.pull_id, outgoing.process.incarnation, outgoing.end)
            self._reap(outgoing.process)
        self._admit()
