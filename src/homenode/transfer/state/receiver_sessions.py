"""The receiver's hand-overs as its scheduler sees them: room, fetching, claiming, stopping."""

from __future__ import annotations

from homenode.transfer.scheduler_events import (
    Claimed,
    Failed,
    Fetch,
    Forgotten,
    Offered,
    Released,
    ReservationFailed,
    Reserved,
    Stopped,
    ToAgent,
    Unused,
)
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.state.deadlines import ReleasedTickets
from homenode.transfer.state.machine import Close, Connect, Limits, Own
from homenode.transfer.state.pages import first_target, page_count
from homenode.transfer.state.peers import PeerProcess
from homenode.transfer.state.receive_session import ReceiveSession
from homenode.transfer.state.receiver_context import ReceiverContext
from homenode.transfer.wire.message import OfferReply, PageRef


class ReceiverSessions:
    """What the scheduler says about hand-overs, and how they are forgotten."""

    def __init__(self, own: Own, settings: TransferConfig, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self.state = ReceiverContext(own, settings, self._limits)
        self._retry_after = settings.pd_alloc_fail_backoff_ttl
        self.tickets: dict[str, ReceiveSession] = {}
        self.pulls: dict[tuple[bytes, int], ReceiveSession] = {}
        self.going: dict[int, ReceiveSession] = {}
        self._done_at: dict[bytes, str] = {}  # incarnation -> its done address
        self._connecting: dict[str, None] = {}
        self._draining = ""
        self._released = ReleasedTickets(self._limits.remembered)

    # The scheduler

    def _from_engine(self, message: ToAgent) -> None:
        incoming = self.tickets.get(message.ticket)
        reading, incoming = incoming, None if incoming is not None and incoming.parted else incoming
        match message:
            case Unused() if reading is not None:
                reading.unused()
                self._look(reading)
            case Reserved() | ReservationFailed() if incoming is None or incoming.stage != "asked":
                if isinstance(message, Reserved) and incoming is None:
                    self.state.tell(Forgotten(self.state.now, message.ticket))
            case Reserved() if incoming is not None:
                self._room(incoming, message)
            case ReservationFailed(_, free, reason) if incoming is not None:
                self._no_room(incoming, free, reason)
            case Fetch() if incoming is not None:
                self._fetch(incoming, message)
            case Stopped() if incoming is not None:
                self._stopped(incoming)
            case Fetch(ticket) | Stopped(ticket):
                self.state.tell(Failed(self.state.now, ticket, "nothing is on its way under this ticket"))
            case Released(ticket) if incoming is None:
                self._released.add(ticket)
            case Released() if incoming is not None and not incoming.wanted:
                self._give_up(incoming)
            case Claimed() if incoming is not None and (
                incoming.complete or incoming.told_end or incoming.blocks is None
            ):
                self._claimed(incoming)
            case Claimed() if incoming is not None and not incoming.quarantined:
                self._stopped(incoming)

    def _room(self, incoming: ReceiveSession, room: Reserved) -> None:
        if incoming.over:
            return self._forget(incoming)
        if not incoming.place(room.blocks, room.held):
            self._reply(
                incoming, OfferReply(incoming.offer.pull_id, refused=True, reason="internal: the blocks do not fit")
            )
            incoming.lose("the blocks do not fit", hard=True, code="internal")
            return self._forget(incoming)
        incoming.stage = "open"
        state, offer = self.state, incoming.offer
        state.deadlines.drop(("room", offer.ticket))
        size = state.layout.block_size
        state.admission.keep(offer.ticket, len(state.ledger.kept(offer.ticket)))
        first = first_target(room.held, offer.page_tokens, size) if room.held < incoming.pages else len(room.blocks)
        past = page_count(offer.tokens, size)
        targets = [PageRef(state.own.cache.id, block, 0) for block in room.blocks[first:past]] if state.push else []
        self._reply(incoming, OfferReply(offer.pull_id, list(range(room.held)), targets, in_place=incoming.in_place))
        self._opened(incoming)
        incoming.begin()
        return self._look(incoming)

    def _no_room(self, incoming: ReceiveSession, free: int, reason: str) -> None:
        if not incoming.over:
            self._reply(incoming, self._full(incoming, free, reason))
        self._remove(incoming)

    def _fetch(self, incoming: ReceiveSession, fetch: Fetch) -> None:
        state = self.state
        incoming.wanted = True
        state.deadlines.drop(("ttl", incoming.ticket))
        if incoming.told_end:
            if not incoming.quarantined:
                state.tell(Failed(state.now, incoming.ticket, incoming.over or "it was called off"))
            return None
        if incoming.quarantined and incoming.ending == "forgotten":
            return incoming.tell_quarantined()
        if incoming.stage == "open" and not incoming.complete:
            state.deadlines.set(("progress", incoming.ticket), state.now + self._limits.progress)
        if state.delay and incoming.blocks is None:
            if incoming.place(fetch.blocks, fetch.held):
                incoming.begin()
            else:
                incoming.lose("the blocks do not fit", hard=True, code="internal")
                incoming.settle()
        return self._look(incoming)

    def _claimed(self, incoming: ReceiveSession) -> None:
        """Nobody writes to its blocks, or there are none."""
        if incoming.quarantined or incoming.stage != "open":
            return
        if not incoming.complete and not incoming.told_end:
            incoming.let_go()
        incoming.ended = True
        self._look(incoming)

    def _give_up(self, incoming: ReceiveSession) -> None:
        """No request will come."""
        if incoming.stage == "open":
            incoming.over = incoming.over or "the ticket was given up"
            return self._forget(incoming)
        return self._call_off(incoming, "the ticket was given up")

    def _stopped(self, incoming: ReceiveSession) -> None:
        if incoming.stage == "open":
            incoming.finish("stopped")
            return self._look(incoming)
        if not incoming.over:
            self._reply(incoming, OfferReply(incoming.offer.pull_id, refused=True, reason="the request ended"))
            incoming.lose("the request ended", hard=True, code="stopped")
        self.state.tell(Failed(self.state.now, incoming.ticket, "the request ended"))
        if incoming.stage == "queued":
            self._remove(incoming)
        return None

    def _call_off(self, incoming: ReceiveSession, reason: str) -> None:
        """From this side."""
        if incoming.stage == "open":
            if not incoming.complete:
                incoming.lose(reason, hard=True, code="draining")
            incoming.settle()
            return self._look(incoming)
        if not incoming.over:
            self._reply(incoming, OfferReply(incoming.offer.pull_id, refused=True, reason=reason))
            incoming.lose(reason, hard=True, code="draining")
        if incoming.stage == "queued":
            self._remove(incoming)
        return None

    def _forget(self, incoming: ReceiveSession) -> None:
        """No request came for it, or its blocks came too late."""
        if incoming.stage == "asked":
            incoming.ended = True
            self.state.tally.forgotten += 1
            self.state.tell(Forgotten(self.state.now, incoming.ticket))
        else:
            incoming.over = incoming.over or "no request came for it"
            incoming.finish("forgotten")
        self._look(incoming)

    # Room

    def _admit(self) -> None:
        """Whoever's turn it is: the scheduler is asked for its blocks."""
        state = self.state
        while (ticket := state.admission.admit(lambda *_: True, max(len(state.processes), 1))) is not None:
            incoming = self.tickets[ticket]
            incoming.stage = "asked"
            offer = incoming.offer
            if offer.room_s is not None:  # for the scheduler's answer, which comes between steps
                wait = min(max(offer.room_s, self._limits.answer), self._limits.room)
                state.deadlines.set(("room", ticket), state.now + wait)
            state.tell(
                Offered(state.now, ticket, offer.tokens, offer.page_tokens, offer.identities, True, incoming.in_place)
            )

    def _opened(self, incoming: ReceiveSession) -> None:
        state, incarnation = self.state, incoming.process.incarnation
        if not incoming.wanted:
            state.deadlines.set(("ttl", incoming.ticket), state.now + state.ttl)
        else:
            state.deadlines.set(("progress", incoming.ticket), state.now + self._limits.progress)
        if incoming.process.beating:
            return
        incoming.process.beating = True
        state.deadlines.set(("beat", incarnation), state.now + self._beat(incoming))

    def _beat(self, incoming: ReceiveSession) -> float:
        return max(min(self._limits.heartbeat, incoming.offer.lease_s / 3), 0.01)

    def _progress(self, incoming: ReceiveSession) -> None:
        deadlines, now = self.state.deadlines, self.state.now
        if incoming.wanted:
            deadlines.set(("progress", incoming.ticket), now + self._limits.progress)
        else:
            deadlines.set(("ttl", incoming.ticket), now + self.state.ttl)

    def _reply(self, incoming: ReceiveSession, reply: OfferReply) -> None:
        self.state.send(incoming.process.came, reply)

    def _full(self, incoming: ReceiveSession, free: int, reason: str) -> OfferReply:
        self.state.tally.refused["no room"] += 1
        return OfferReply(
            incoming.offer.pull_id, alloc_failed=True, free_pages=free, retry_after_s=self._retry_after, reason=reason
        )

    # What is over

    def _with(self, process: PeerProcess) -> list[ReceiveSession]:
        return [incoming for incoming in self.pulls.values() if incoming.process is process]

    def _look(self, incoming: ReceiveSession) -> None:
        """After anything happened to a hand-over."""
        for token in incoming.copies:
            self.going[token] = incoming
        if incoming.ended and self.tickets.get(incoming.ticket) is incoming:
            self._part(incoming)
            if not incoming.placed:
                self._remove(incoming)
        elif incoming.told_end or incoming.complete:
            self.state.deadlines.drop(("progress", incoming.ticket))

    def _remove(self, incoming: ReceiveSession) -> None:
        ticket = incoming.ticket
        if self.tickets.get(ticket) is not incoming:
            return
        self._part(incoming)
        del self.tickets[ticket], self.pulls[incoming.process.incarnation, incoming.offer.pull_id]
        self._reap(incoming.process)
        self._admit()

    def _part(self, incoming: ReceiveSession) -> None:
        """It has ended for the scheduler, but for pages that are read in place: its own blocks are none of ours any
        more."""
        state, ticket = self.state, incoming.ticket
        if incoming.parted:
            return
        incoming.parted = True
        for name in ("room", "ttl", "progress", "drain"):
            state.deadlines.drop((name, ticket))
        state.admission.leave(ticket, incoming.process.incarnation.hex())
        state.admission.release(ticket)
        state.ledger.end(ticket)
        if incoming.placed:
            self._admit()

    def _reap(self, process: PeerProcess) -> None:
        """Let go of connections that nothing hangs on any more."""
        state = self.state
        if self._with(process):
            return
        if state.in_place and not (process.dead or process.banned) and state.dones.waits_for(process.incarnation):
            return  # no lease would end what it is to be told of
        idle = process.came is None and not state.dones.waits_for(process.incarnation)
        if process.banned or process.dead or idle:
            for peer in sorted(process.live):
                state.processes.lost(peer, False)
        for peer in state.processes.forget(process):
            state.act(Close(peer, process.banned or "done with"))
        if state.processes.get(process.incarnation) is None and not state.dones.waits_for(process.incarnation):
            self._done_at.pop(process.incarnation, None)

    def _ensure_done(self, process: PeerProcess) -> None:
        """Open the sender's done channel, unless it is."""
        address = self._done_at.get(process.incarnation)
        if address is None or process.made is not None or process.dead or process.banned or address in self._connecting:
            return
        self._connecting[address] = None
        self.state.deadlines.set(("connect", address), self.state.now + self._limits.connect)
        self.state.act(Connect(address))
