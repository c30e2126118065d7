"""The receiver's transfers as its scheduler sees them: reserved, fetched, claimed, stopped, and forgotten."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

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
from homenode.transfer.state.context import ReceiverContext
from homenode.transfer.state.deadlines import ReleasedTickets
from homenode.transfer.state.machine import ReceiveState
from homenode.transfer.state.pages import first_target, page_count
from homenode.transfer.state.peers import PeerProcess
from homenode.transfer.state.receive_session import ReceiveSession
from homenode.transfer.wire.message import Offer, OfferReply, PageRef


class ReceiverSessions:
    """Transfers by their tickets, by what their senders call them, and by the copies that are under way."""

    def __init__(self, ctx: ReceiverContext, retry_after_s: float) -> None:
        """`retry_after_s`: after so long a sender that found no blocks may ask again."""
        self.ctx = ctx
        self.tickets: dict[str, ReceiveSession] = {}
        self.pulls: dict[tuple[bytes, int], ReceiveSession] = {}
        self.going: dict[int, ReceiveSession] = {}
        self.released = ReleasedTickets(ctx.limits.remembered)
        # Called when a session of a process is removed; `sender_peers.SenderPeers.reap`.
        self.on_removed: Callable[[PeerProcess], None] = lambda process: None
        self._retry_after_s = retry_after_s
        self._by_message: Mapping[type, Callable[[Any], None]] = {
            Reserved: self._on_reserved,
            ReservationFailed: self._on_refused,
            Fetch: self._on_fetch,
            Claimed: self._on_claimed,
            Stopped: self._on_stopped,
            Released: self._on_released,
            Unused: self._on_unused,
        }

    def of(self, process: PeerProcess) -> list[ReceiveSession]:
        """The transfers with a process."""
        return [session for session in self.pulls.values() if session.process is process]

    def take(self, message: ToAgent) -> None:
        """Take a message of the scheduler."""
        handle = self._by_message.get(type(message))
        if handle is not None:
            handle(message)

    def _find(self, ticket: str) -> ReceiveSession | None:
        """A transfer that the scheduler knows of."""
        session = self.tickets.get(ticket)
        return None if session is None or session.state is ReceiveState.DETACHED else session

    # Offers

    def add(self, session: ReceiveSession, offer: Offer) -> None:
        """Take an offer in: answer it at once where the request's blocks are waited for, else queue it."""
        ctx = self.ctx
        self.tickets[offer.ticket] = self.pulls[session.process.incarnation, offer.pull_id] = session
        if ctx.delay:
            session.enter(ReceiveState.RECEIVING)
            self.reply(session, OfferReply(offer.pull_id, in_place=session.in_place))
            self._tell_offered(session, needs_blocks=False)
            self._watch(session)
            return
        most = ctx.limits.room if offer.room_s is None else min(offer.room_s, ctx.limits.room)
        ctx.deadlines.set(("room", offer.ticket), ctx.now + most)
        ctx.admission.wait(
            offer.ticket, session.process.incarnation.hex(), page_count(offer.tokens, ctx.layout.block_size)
        )
        self.admit()
        if session.state is ReceiveState.QUEUED:
            ctx.admission.waits += 1

    def admit(self) -> None:
        """Ask the scheduler for blocks of whoever's turn it is."""
        ctx, limits = self.ctx, self.ctx.limits
        while (ticket := ctx.admission.admit(lambda *_: True, max(len(ctx.processes), 1))) is not None:
            session = self.tickets[ticket]
            session.enter(ReceiveState.RESERVING)
            if session.offer.room_s is not None:  # for the scheduler's answer, which comes between steps
                wait = min(max(session.offer.room_s, limits.answer), limits.room)
                ctx.deadlines.set(("room", ticket), ctx.now + wait)
            self._tell_offered(session, needs_blocks=True)

    def _tell_offered(self, session: ReceiveSession, *, needs_blocks: bool) -> None:
        offer = session.offer
        what = (offer.ticket, offer.tokens, offer.page_tokens, offer.identities, needs_blocks, session.in_place)
        self.ctx.tell(Offered(self.ctx.now, *what))

    def _watch(self, session: ReceiveSession) -> None:
        """Set the deadlines of a transfer that was accepted."""
        ctx, process = self.ctx, session.process
        self.note_progress(session)
        if not process.beating:
            process.beating = True
            ctx.deadlines.set(("beat", process.incarnation), ctx.now + self.beat(session))

    def beat(self, session: ReceiveSession) -> float:
        """Seconds between two renewals of its lease."""
        return max(min(self.ctx.limits.heartbeat, session.offer.lease_s / 3), 0.01)

    def note_progress(self, session: ReceiveSession) -> None:
        """Put off the deadline by which something must have happened."""
        ctx, ticket = self.ctx, session.ticket
        if session.wanted:
            ctx.deadlines.set(("progress", ticket), ctx.now + ctx.limits.progress)
        else:
            ctx.deadlines.set(("ttl", ticket), ctx.now + ctx.ttl)

    def reply(self, session: ReceiveSession, reply: OfferReply) -> None:
        """Answer the sender's offer."""
        self.ctx.send(session.process.came, reply)

    def _refuse(self, session: ReceiveSession, reason: str) -> None:
        self.reply(session, OfferReply(session.offer.pull_id, refused=True, reason=reason))

    def reply_full(self, session: ReceiveSession, free: int, reason: str) -> None:
        """Answer that there are no blocks."""
        self.ctx.counter.refused["no room"] += 1
        pull_id, retry = session.offer.pull_id, self._retry_after_s
        full = OfferReply(pull_id, alloc_failed=True, free_pages=free, retry_after_s=retry, reason=reason)
        self.reply(session, full)

    # The scheduler

    def _on_reserved(self, message: Reserved) -> None:
        session = self._find(message.ticket)
        if session is None:
            self.ctx.tell(Forgotten(self.ctx.now, message.ticket))
        elif session.state is ReceiveState.WITHDRAWN:
            self.forget(session, "its blocks came too late")
        elif session.state is ReceiveState.RESERVING:
            self._open(session, message)

    def _open(self, session: ReceiveSession, reserved: Reserved) -> None:
        if not session.place(reserved.blocks, reserved.held):
            self._refuse(session, "internal: the blocks do not fit")
            session.lose("the blocks do not fit", final=True, code="internal")
            return self.forget(session, "the blocks do not fit")
        session.enter(ReceiveState.RECEIVING)
        ctx, offer, held = self.ctx, session.offer, reserved.held
        ctx.deadlines.drop(("room", offer.ticket))
        size, blocks = ctx.layout.block_size, reserved.blocks
        ctx.admission.keep(offer.ticket, len(ctx.ledger.kept(offer.ticket)))
        first = first_target(held, offer.page_tokens, size) if held < session.pages else len(blocks)
        past = page_count(offer.tokens, size)
        targets = [PageRef(ctx.own.cache.id, block, 0) for block in blocks[first:past]] if ctx.push else []
        self.reply(session, OfferReply(offer.pull_id, list(range(held)), targets, in_place=session.in_place))
        self._watch(session)
        session.begin()
        return self.look(session)

    def _on_refused(self, message: ReservationFailed) -> None:
        session = self._find(message.ticket)
        if session is None or session.state not in (ReceiveState.RESERVING, ReceiveState.WITHDRAWN):
            return
        if session.state is ReceiveState.RESERVING:
            self.reply_full(session, message.free_blocks, message.reason)
        self.remove(session)

    def _on_fetch(self, fetch: Fetch) -> None:
        session = self._find(fetch.ticket)
        if session is None:
            return self._tell_unknown(fetch.ticket)
        ctx = self.ctx
        session.wanted = True
        ctx.deadlines.drop(("ttl", session.ticket))
        if session.is_reported:
            if not session.quarantined:
                ctx.tell(Failed(ctx.now, session.ticket, session.end_reason or "it was called off"))
            return None
        if session.quarantined and session.ending == "forgotten":
            return session.tell_quarantined()
        if session.is_answered and not session.is_complete:
            self.note_progress(session)
        if ctx.delay and session.blocks is None:
            self._place_late(session, fetch)
        return self.look(session)

    def _place_late(self, session: ReceiveSession, fetch: Fetch) -> None:
        if session.place(fetch.blocks, fetch.held):
            session.begin()
        else:
            session.lose("the blocks do not fit", final=True, code="internal")
            session.settle()

    def _on_claimed(self, message: Claimed) -> None:
        session = self._find(message.ticket)
        if session is None or session.quarantined:
            return None
        if not (session.is_complete or session.is_reported or session.blocks is None):
            return self._stop(session)
        # Nobody writes to its blocks, or there are none.
        if not session.is_answered:
            return None
        if not session.is_complete and not session.is_reported:
            session.decline()
        session.enter(ReceiveState.ENDED)
        return self.look(session)

    def _on_stopped(self, message: Stopped) -> None:
        session = self._find(message.ticket)
        return self._tell_unknown(message.ticket) if session is None else self._stop(session)

    def _on_released(self, message: Released) -> None:
        """Take the word that no request will come."""
        session = self._find(message.ticket)
        if session is None:
            self.released.add(message.ticket)
        elif session.wanted:
            return
        elif session.is_answered:
            self.forget(session, "the ticket was given up")
        else:
            self.call_off(session, "the ticket was given up")

    def _on_unused(self, message: Unused) -> None:
        session = self.tickets.get(message.ticket)  # also one that is detached
        if session is not None:
            session.unused()
            self.look(session)

    def _tell_unknown(self, ticket: str) -> None:
        self.ctx.tell(Failed(self.ctx.now, ticket, "nothing is on its way under this ticket"))

    def _stop(self, session: ReceiveSession) -> None:
        if session.is_answered:
            session.finish("stopped")
            return self.look(session)
        queued = session.state is ReceiveState.QUEUED
        if session.state is not ReceiveState.WITHDRAWN:
            self._refuse(session, "the request ended")
            session.lose("the request ended", final=True, code="stopped")
        self.ctx.tell(Failed(self.ctx.now, session.ticket, "the request ended"))
        if queued:
            self.remove(session)
        return None

    # Ends

    def call_off(self, session: ReceiveSession, reason: str) -> None:
        """End a transfer from this side."""
        if session.is_answered:
            if not session.is_complete:
                session.lose(reason, final=True, code="draining")
            session.settle()
            return self.look(session)
        queued = session.state is ReceiveState.QUEUED
        if session.state is not ReceiveState.WITHDRAWN:
            self._refuse(session, reason)
            session.lose(reason, final=True, code="draining")
        if queued:
            self.remove(session)
        return None

    def lose(self, session: ReceiveSession, reason: str, *, final: bool, code: str = "lost") -> None:
        """Take note that nothing more is announced, or read."""
        queued = session.state is ReceiveState.QUEUED
        session.lose(reason, final=final, code=code)
        if queued:
            return self.remove(session)
        session.settle()
        return self.look(session)

    def forget(self, session: ReceiveSession, reason: str = "no request came for it") -> None:
        """End a transfer that no request came for, or whose blocks came too late."""
        session.forget(reason)
        self.look(session)

    def expire(self, session: ReceiveSession) -> None:
        """End an offer for which there was no room in time, or the scheduler was silent; should it still answer, its
        blocks go back."""
        if session.state is ReceiveState.WITHDRAWN:
            return  # the sender has its answer
        self.reply_full(session, self.ctx.admission.free, "no room in time")
        if session.state is ReceiveState.QUEUED:
            self.remove(session)
        else:
            session.lose("no room in time", final=True, code="room")

    def look(self, session: ReceiveSession) -> None:
        """See to what follows, after anything happened to a transfer."""
        for token in session.copies:
            self.going[token] = session
        if session.state is ReceiveState.ENDED and self.tickets.get(session.ticket) is session:
            self._detach(session)
        if session.state is ReceiveState.DETACHED:
            if not session.placed:
                self.remove(session)
        elif session.is_reported or session.is_complete:
            self.ctx.deadlines.drop(("progress", session.ticket))

    def remove(self, session: ReceiveSession) -> None:
        """Forget a transfer that is over."""
        ticket = session.ticket
        if self.tickets.get(ticket) is not session:
            return
        self._detach(session)
        del self.tickets[ticket], self.pulls[session.process.incarnation, session.offer.pull_id]
        self.on_removed(session.process)
        self.admit()

    def _detach(self, session: ReceiveSession) -> None:
        """End it for the scheduler, but for pages that are read in place: its own blocks are none of ours any more."""
        ctx, ticket = self.ctx, session.ticket
        if session.state is ReceiveState.DETACHED:
            return
        session.enter(ReceiveState.DETACHED)
        for name in ("room", "ttl", "progress", "drain"):
            ctx.deadlines.drop((name, ticket))
        ctx.admission.leave(ticket, session.process.incarnation.hex())
        ctx.admission.release(ticket)
        ctx.ledger.end(ticket)
        if session.placed:
            self.admit()
