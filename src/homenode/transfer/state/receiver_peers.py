"""The receivers that a sending machine knows: connections to them, and their frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from homenode.transfer.scheduler_events import SendAdmitted
from homenode.transfer.state.context import SenderContext
from homenode.transfer.state.machine import Close, Connected, SendState
from homenode.transfer.state.pages import difference
from homenode.transfer.state.peers import PeerProcess
from homenode.transfer.state.send_session import SendSession, leading_pages
from homenode.transfer.state.sender_sessions import SenderSessions
from homenode.transfer.wire.message import (
    Cancel,
    Data,
    Done,
    DoneAck,
    Drained,
    Message,
    OfferReply,
    Read,
    Renew,
    Renewed,
    Stored,
)
from homenode.units import format_count


class ReceiverPeers:
    """Messages of receivers, and what becomes of their transfers when they are lost."""

    def __init__(self, ctx: SenderContext, sessions: SenderSessions) -> None:
        self.ctx, self.sessions = ctx, sessions
        self._limits = ctx.limits
        self._by_message: Mapping[type, Callable[[int, PeerProcess, Any], None]] = {
            Done: self._on_done,
            Renew: self._on_renew,
            OfferReply: self._on_session,
            Stored: self._on_session,
            Cancel: self._on_session,
            Read: self._on_session,
        }
        self._of_session: Mapping[type, Callable[[int, SendSession, Any], None]] = {
            OfferReply: self._on_reply,
            Stored: self._on_stored,
            Cancel: self._on_cancel,
            Read: self._on_read,
        }

    # Connections

    def connected(self, connected: Connected) -> None:
        """Take a connection in, if what is at its other end fits."""
        ctx, sessions, address, hello = self.ctx, self.sessions, connected.address, connected.hello
        if address and address in sessions.receivers:
            sessions.receivers[address].connecting = False
            ctx.deadlines.drop(("connect", address))
        if hello.role != "receiver":
            ctx.act(Close(connected.peer, "this engine sends KV, and so does the other"))
            return sessions.refuse_waiting(address, "peer", "the engine there is no receiver")
        differences = (difference(ctx.layout, buffer.layout) for buffer in hello.buffers)
        different = next(filter(None, differences), None)
        if different is not None:
            ctx.act(Close(connected.peer, different))
            return sessions.refuse_waiting(address, "peer", different)
        process = ctx.processes.connected(connected.peer, hello, address, ctx.now)
        if address:
            receiver = sessions.receiver(address)
            receiver.process, receiver.failure = process, ""
        return sessions.admit()

    def connect_failed(self, address: str, reason: str) -> None:
        """Take note that there is no connection to an address."""
        receiver = self.sessions.receivers.get(address)
        if receiver is None:
            return
        receiver.connecting = False
        receiver.failed_at, receiver.failure = self.ctx.now, reason
        self.ctx.deadlines.drop(("connect", address))
        self.sessions.refuse_waiting(address, "connect", f"{address}: {reason}")

    def lost(self, peer: int, reason: str, dead: bool) -> None:
        """Take note that a connection has ended, or a process."""
        process = self.ctx.processes.lost(peer, dead)
        if process is not None:
            self._after_loss(process, reason)

    def _after_loss(self, process: PeerProcess, reason: str) -> None:
        ctx, sessions = self.ctx, self.sessions
        if process.made is None:
            for session in sessions.of(process):
                self._lose(session, process, reason)
        for receiver in list(sessions.receivers.values()):
            if receiver.process is process and not receiver.connected and ctx.admission.waits_for(receiver.address):
                sessions.connect(receiver)
        self.reap(process)
        sessions.admit()

    def _lose(self, session: SendSession, process: PeerProcess, reason: str) -> None:
        reason = f"the receiver was lost: {reason}"
        if not session.is_admitted:
            return self.sessions.refuse(session, "lost", reason, self._limits.backoff, notify=False)
        unreachable = not self.ctx.shared and process.by_made is None
        unreadable = process.dead or (bool(process.banned) and not session.is_lent) or unreachable
        if session.announced == session.pages and not unreadable and not self.ctx.push:
            return None  # it may still be read
        session.lose("lost", reason, unreadable=unreadable)
        return self.sessions.look(session)

    def _ban(self, process: PeerProcess, code: str, reason: str) -> None:
        """End the transfers of a process that broke the protocol, and its connections too."""
        self.ctx.counter.violations[code] += 1
        process.banned = reason
        sessions = self.sessions.of(process)
        if not any(session.is_lent for session in sessions):
            return self.cut(process, reason)
        for session in sessions:  # how it ends is still to be heard: it says Done, or dies
            self._lose(session, process, reason)
        return None

    def cut(self, process: PeerProcess, reason: str) -> None:
        """End all connections of a process."""
        for peer in sorted(process.live):
            self.ctx.act(Close(peer, reason))
            self.ctx.processes.lost(peer, False)
            self.ctx.processes.closed(peer)
        self._after_loss(process, reason)

    def reap(self, process: PeerProcess) -> None:
        """Let go of ended connections once nothing hangs on them; of those of a process that broke the protocol too."""
        sessions = self.sessions
        if process.banned and process.live and not sessions.of(process):
            for peer in sorted(process.live):
                self.ctx.processes.lost(peer, False)
        if process.lost and not sessions.of(process):
            self.ctx.close(process, "done with")
            for receiver in list(sessions.receivers.values()):
                if receiver.process is process and not process.live:
                    receiver.process = None
                    sessions.tidy(receiver.address)

    # Frames

    def take(self, peer: int, message: Message) -> None:
        """Take a frame."""
        process = self.ctx.processes.of(peer)
        if process is None or peer not in process.live or (process.banned and not isinstance(message, Done)):
            return
        process.heard = self.ctx.now
        handle = self._by_message.get(type(message))
        if handle is None:
            self._ban(process, "wrong role", f"{type(message).__name__} from a receiver")
        else:
            handle(peer, process, message)

    def _on_session(self, peer: int, process: PeerProcess, message: OfferReply | Stored | Cancel | Read) -> None:
        session = self.sessions.pulls.get(message.pull_id)
        if session is None:
            return self._on_ended(peer, process, message)
        if session.process is not process:
            self.ctx.counter.forged += 1
            return self._ban(process, "forged", "a frame about another receiver's hand-over")
        return self._of_session[type(message)](peer, session, message)

    def _on_ended(self, peer: int, process: PeerProcess, message: OfferReply | Stored | Cancel | Read) -> None:
        """Answer a frame about a transfer that has ended."""
        pull_id = message.pull_id
        if pull_id >= self.sessions.next_pull:
            return self._ban(process, "unknown", f"hand-over {pull_id} was never offered")
        if isinstance(message, Cancel):
            self.ctx.send(peer, Drained(pull_id))
        elif isinstance(message, Read):
            self.ctx.send(peer, Data(pull_id, message.first, 0, 0, [], False, epochs_ok=False))
        else:
            self.ctx.counter.late += 1
        return None

    def _ban_over(self, session: SendSession, code: str, reason: str) -> None:
        assert session.process is not None
        self._ban(session.process, code, reason)

    def _on_reply(self, peer: int, session: SendSession, reply: OfferReply) -> None:
        sessions, receiver = self.sessions, self.sessions.receivers[session.address]
        if session.is_admitted:
            return self._ban_over(session, "offer-reply", "a second answer to an offer")
        if reply.alloc_failed:
            left = sessions.open_breaker(receiver, reply.retry_after_s) or reply.retry_after_s
            free = format_count(reply.free_pages, "page")
            reason = f"the receiver has no room ({free} free): {reply.reason}"
            sessions.refuse(session, "no room", reason, left, notify=False)
            return sessions.refuse_by_breaker(receiver, left)
        if reply.refused:
            return sessions.refuse(session, "refused", reply.reason or "the receiver refused", notify=False)
        objection = session.objection(reply)
        if objection is not None:
            return self._ban_over(session, "offer-reply", objection)
        receiver.breaker.succeeded()
        return self._open(session, reply)

    def _open(self, session: SendSession, reply: OfferReply) -> None:
        ctx, sessions = self.ctx, self.sessions
        held = leading_pages(reply.already_sent_indexes)
        if session.early and held < session.pages:
            return sessions.refuse(session, "refused", "the receiver called it off", notify=False)
        ctx.deadlines.drop(("room", session.ticket))
        ctx.deadlines.drop(("reply", session.ticket))
        ctx.leases.grant(session.pull_id, ctx.now)
        session.open(reply)
        ctx.tell(SendAdmitted(ctx.now, session.ticket, session.held))
        if session.early:
            session.finish()
        return sessions.look(session)

    def _on_read(self, peer: int, session: SendSession, read: Read) -> None:
        readable = not self.ctx.push and not self.ctx.shared and session.is_admitted
        if not readable or not session.send_bytes(peer, read):
            return self._ban_over(session, "read", "pages were asked for that are not to be read")
        return self.sessions.look(session)

    def _on_stored(self, peer: int, session: SendSession, stored: Stored) -> None:
        sent = self.ctx.push and session.is_admitted
        if not sent or not session.store(stored.pages, stored.ok, stored.reason):
            return self._ban_over(session, "stored", "pages are said to be stored that were not sent")
        return self.sessions.look(session)

    def _on_cancel(self, peer: int, session: SendSession, cancel: Cancel) -> None:
        if not self.ctx.push:
            return self._ban_over(session, "cancel", "Cancel is for push")
        if not session.is_admitted:
            self.ctx.send(peer, Drained(cancel.pull_id))
            return self.sessions.refuse(session, "refused", "the receiver called it off", notify=False)
        session.cancel()
        return self.sessions.look(session)

    def _on_done(self, peer: int, process: PeerProcess, done: Done) -> None:
        ctx, session = self.ctx, self.sessions.pulls.get(done.pull_id)
        known = ctx.ended.how(done.pull_id) if session is None else None
        owner = process.incarnation
        if session is not None and session.process is not None:
            owner = session.process.incarnation
        elif known is not None:
            owner = known[0]
        if owner != process.incarnation:
            ctx.counter.forged += 1
            return self._ban(process, "forged", "Done for another receiver's hand-over")
        if session is not None:
            return self._finish(peer, session)
        return ctx.send(peer, DoneAck(done.pull_id, self._count_late(known[1] if known is not None else None)))

    def _count_late(self, end: str | None) -> Literal["unknown", "ok", "late"]:
        """Count a Done for a transfer that has ended; the status that it is answered with."""
        counter = self.ctx.counter
        if end is None:
            counter.unknown += 1
            return "unknown"
        if end == "done":
            counter.duplicates += 1
            return "ok"
        counter.late += 1
        return "late"

    def _finish(self, peer: int, session: SendSession) -> None:
        ctx, counter = self.ctx, self.ctx.counter
        if not session.is_admitted:
            ctx.send(peer, DoneAck(session.pull_id, "early"))
            counter.early += not session.early
            session.early = True  # its answer to the offer is on its way, on the other channel
            return None
        if session.state is SendState.RELEASED and session.end == "expired":
            counter.late += 1
            return ctx.send(peer, DoneAck(session.pull_id, "late"))
        announced = session.announced == session.pages
        if session.state is SendState.RELEASED:
            counter.duplicates += 1
        elif not announced:
            counter.early += 1
        ctx.send(peer, DoneAck(session.pull_id, "ok" if announced else "early"))
        session.finish()
        return self.sessions.look(session)

    def _on_renew(self, peer: int, process: PeerProcess, renew: Renew) -> None:
        ctx, pulls = self.ctx, self.sessions.pulls
        mine = [n for n in renew.pull_ids if (session := pulls.get(n)) is not None and session.process is process]
        live = set(mine) - set(ctx.leases.renew((n for n in mine if pulls[n].is_admitted), ctx.now))
        ctx.send(peer, Renewed(ctx.leases.ttl, [n for n in renew.pull_ids if n not in live]))
