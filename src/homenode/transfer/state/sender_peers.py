"""The senders that a receiving machine knows: connections to them, and their frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from homenode.transfer.state.context import ReceiverContext
from homenode.transfer.state.machine import Close, Connect, Connected
from homenode.transfer.state.pages import difference, page_count
from homenode.transfer.state.peers import PeerProcess
from homenode.transfer.state.receive_session import ReceiveSession
from homenode.transfer.state.receiver_sessions import ReceiverSessions
from homenode.transfer.wire.message import (
    Abandon,
    Data,
    DoneAck,
    Drained,
    Message,
    Offer,
    OfferReply,
    Ready,
    Renew,
    Renewed,
)
from homenode.units import format_count


class SenderPeers:
    """Messages of senders, and what becomes of their transfers when they are lost. `draining`: why no more offers are
    taken."""

    def __init__(self, ctx: ReceiverContext, sessions: ReceiverSessions) -> None:
        self.ctx, self.sessions = ctx, sessions
        self.draining = ""
        self._limits = ctx.limits
        self._done_at: dict[bytes, str] = {}  # incarnation -> its done address
        self._connecting: dict[str, None] = {}
        self._by_message: Mapping[type, Callable[[int, PeerProcess, Any], None]] = {
            Offer: self._on_offer,
            Ready: self._on_ready,
            Data: self._on_data,
            Abandon: self._on_abandon,
            Drained: self._on_drained,
            DoneAck: self._on_acknowledged,
            Renewed: self._on_renewed,
        }

    # Connections

    def connected(self, connected: Connected) -> None:
        """Take a connection in, if what is at its other end fits."""
        ctx, address, hello = self.ctx, connected.address, connected.hello
        self._connecting.pop(address, None)
        ctx.deadlines.drop(("connect", address))
        wrong = "this engine receives KV, and so does the other" if hello.role != "sender" else None
        differences = (difference(buffer.layout, ctx.layout) for buffer in hello.buffers)
        wrong = wrong or next(filter(None, differences), None)
        if wrong:
            ctx.act(Close(connected.peer, wrong))
            return self._unreachable(address, wrong, b"")
        process = ctx.processes.connected(connected.peer, hello, address, ctx.now, connected.bases)
        for session in self.sessions.of(process):
            session.cancel_again()
        if not address:
            return None
        for done in ctx.dones.of(process.incarnation):
            ctx.send(connected.peer, done)
        for session in self.sessions.of(process):
            session.pump()
            self.sessions.look(session)
        self._unreachable(address, "another process answers there", process.incarnation)
        return self.reap(process)

    def connect_failed(self, address: str, reason: str) -> None:
        """Take note that there is no connection to an address."""
        self._connecting.pop(address, None)
        self.ctx.deadlines.drop(("connect", address))
        self._unreachable(address, reason, b"")

    def _unreachable(self, address: str, reason: str, other: bytes) -> None:
        """Give up on the done channel of a sender: what is not in shared memory cannot be read. `other`: the process
        that answers there."""
        ctx = self.ctx
        for incarnation in [key for key, at in self._done_at.items() if at == address and key != other]:
            process = ctx.processes.get(incarnation)
            if process is None or other:
                ctx.dones.forget(incarnation)
                del self._done_at[incarnation]
            if process is None:
                continue
            if not ctx.shared and not ctx.push:
                for session in self.sessions.of(process):
                    self.sessions.lose(session, f"its done channel: {reason}", final=True)
            process.failures = min(process.failures + 1, 6)
            ctx.deadlines.set(("reconnect", incarnation), ctx.now + self._limits.backoff * 2**process.failures)

    def lost(self, peer: int, reason: str, dead: bool) -> None:
        """Take note that a connection has ended, or a process."""
        process = self.ctx.processes.lost(peer, dead)
        if process is not None:
            self._after_loss(process, reason)

    def _after_loss(self, process: PeerProcess, reason: str) -> None:
        if process.dead:
            self.ctx.dones.forget(process.incarnation)
        if process.came is None or process.dead:
            self._lose_all(process, f"the sender was lost: {reason}")
        for session in self.sessions.of(process):
            session.cancel_again()
        if process.made is None and not process.dead:
            for session in self.sessions.of(process):
                session.unanswered()
                session.pump()
                self.sessions.look(session)
            self.reconnect(process)
        self.reap(process)

    def _lose_all(self, process: PeerProcess, reason: str, code: str = "lost") -> None:
        """Expect no more announcements. What was announced in shared memory can still be read, even if the process is
        gone."""
        final = not self.ctx.shared or self.ctx.push or bool(process.banned)
        for session in self.sessions.of(process):
            self.sessions.lose(session, reason, final=final, code=code)

    def _ban(self, process: PeerProcess, code: str, reason: str) -> None:
        """End the transfers of a process that broke the protocol, and its connections, where it may still write once it
        cannot any more."""
        ctx = self.ctx
        ctx.counter.violations[code] += 1
        process.banned = reason
        ctx.dones.forget(process.incarnation)
        self._lose_all(process, f"the sender broke the protocol: {reason}", "protocol")
        in_place = any(session.placed for session in self.sessions.of(process))  # to close is to let go of its memory
        if not (ctx.push and ctx.shared) and not in_place:
            for peer in sorted(process.live):
                self.cut(process, peer, reason)
        self.reap(process)

    def cut(self, process: PeerProcess, peer: int, reason: str) -> None:
        """End one connection."""
        if peer in process.live:
            self.ctx.act(Close(peer, reason))
            self.ctx.processes.lost(peer, False)
            self.ctx.processes.closed(peer)
            self._after_loss(process, reason)

    def reap(self, process: PeerProcess) -> None:
        """Let go of connections that nothing hangs on any more."""
        ctx = self.ctx
        if self.sessions.of(process):
            return
        waited_for = ctx.dones.waits_for(process.incarnation)
        if ctx.in_place and not (process.dead or process.banned) and waited_for:
            return  # no lease would end what it is to be told of
        if process.banned or process.dead or (process.came is None and not waited_for):
            for peer in sorted(process.live):
                ctx.processes.lost(peer, False)
        for peer in ctx.processes.forget(process):
            ctx.act(Close(peer, process.banned or "done with"))
        if ctx.processes.get(process.incarnation) is None and not ctx.dones.waits_for(process.incarnation):
            self._done_at.pop(process.incarnation, None)

    def reconnect(self, process: PeerProcess) -> None:
        """Open a sender's done channel again, if it is needed."""
        if self.sessions.of(process) or self.ctx.dones.waits_for(process.incarnation):
            self._ensure_done(process)

    def _ensure_done(self, process: PeerProcess) -> None:
        """Open the sender's done channel, unless it is."""
        address = self._done_at.get(process.incarnation)
        if address is None or process.made is not None or process.dead or process.banned or address in self._connecting:
            return
        self._connecting[address] = None
        self.ctx.deadlines.set(("connect", address), self.ctx.now + self._limits.connect)
        self.ctx.act(Connect(address))

    # Time

    def beat(self, incarnation: bytes) -> None:
        """Renew the leases of a sender's pages, and notice that it is silent."""
        ctx = self.ctx
        process = ctx.processes.get(incarnation)
        if process is None:
            return
        reading = [session for session in self.sessions.of(process) if session.is_kept]
        process.beating = bool(reading)
        if not reading:
            return
        if process.asked is not None and ctx.now - process.asked >= self._limits.silence and not process.silent:
            process.silent = True
            self._lose_all(process, "the sender is silent", "silent")
        if process.by_made is not None:
            ctx.send(process.by_made, Renew([session.offer.pull_id for session in reading]))
            process.asked = ctx.now if process.asked is None else process.asked
        self._ensure_done(process)
        ctx.deadlines.set(("beat", incarnation), ctx.now + min(map(self.sessions.beat, reading)))

    def repeat_done(self, incarnation: bytes, pull_id: int) -> None:
        """Say Done again that was not acknowledged in time."""
        ctx = self.ctx
        done = ctx.dones.again((incarnation, pull_id), ctx.now)
        process = ctx.processes.get(incarnation)
        if process is None:
            ctx.dones.forget(incarnation)
        elif done is not None:
            ctx.send(process.by_made, done)
            self._ensure_done(process)
        else:
            self.reap(process)

    # Frames

    def take(self, peer: int, message: Message) -> None:
        """Take a frame."""
        process = self.ctx.processes.of(peer)
        if process is None or peer not in process.live:
            return
        process.heard, process.asked, process.silent = self.ctx.now, None, False
        if process.banned and not isinstance(message, Drained):
            return
        handle = self._by_message.get(type(message))
        if handle is None:
            self._ban(process, "wrong role", f"{type(message).__name__} from a sender")
        else:
            handle(peer, process, message)

    def _on_offer(self, peer: int, process: PeerProcess, offer: Offer) -> None:
        if peer != process.came:
            return self._ban(process, "wrong channel", "an offer on a done channel")
        objection = self._objection(process, offer)
        if objection is not None:
            return self._ban(process, "offer", objection)
        process.highest = offer.pull_id
        refusal = self._refusal(process, offer)
        if refusal is not None:
            code, reply = refusal
            self.ctx.counter.refused[code] += 1
            return self.ctx.send(peer, reply)
        session = ReceiveSession(self.ctx, process, offer, self.ctx.now)
        mapped = bool(process.bases) and process.bases.keys() >= process.buffers.keys()
        session.in_place = self.ctx.in_place and mapped
        if offer.done:
            self._done_at[process.incarnation] = offer.done
            self._ensure_done(process)
        return self.sessions.add(session, offer)

    def _objection(self, process: PeerProcess, offer: Offer) -> str | None:
        """Return what no honest sender says."""
        if offer.pull_id <= process.highest:
            return f"hand-over {offer.pull_id} was offered before"
        pages, tokens = len(offer.identities), format_count(offer.tokens, "token")
        if not offer.tokens or not offer.page_tokens or page_count(offer.tokens, offer.page_tokens) != pages:
            return f"{pages} identities for {tokens} in pages of {offer.page_tokens}"
        if self.ctx.push:
            return None
        if not offer.done or self._done_at.get(process.incarnation, offer.done) != offer.done:
            return "no done address, or another one than before"
        if any(layout.block_size != offer.page_tokens for layout in process.buffers.values()):
            return f"pages of {format_count(offer.page_tokens, 'token')}, unlike the buffers registered"
        return None

    def _refusal(self, process: PeerProcess, offer: Offer) -> tuple[str, OfferReply] | None:
        """The code and the answer, where an honest sender's offer cannot be taken."""
        ctx, pull_id, tickets = self.ctx, offer.pull_id, self.sessions
        if self.draining:
            return "draining", OfferReply(pull_id, refused=True, reason=self.draining)
        if tickets.released.take(offer.ticket):
            return "released", OfferReply(pull_id, refused=True, reason="the ticket was given up before it came")
        if offer.ticket in tickets.tickets:
            return "duplicate", OfferReply(pull_id, refused=True, reason=f"ticket {offer.ticket!r} is in hand already")
        theirs, limits = self.sessions.of(process), self._limits
        announced = sum(session.pages for session in theirs) + len(offer.identities)
        if len(theirs) >= limits.offers or announced > limits.announced:
            reason = "too many hand-overs at once"
            return "too many", OfferReply(pull_id, alloc_failed=True, reason=reason, retry_after_s=1.0)
        if offer.page_tokens % 16:
            reason = f"pages of {format_count(offer.page_tokens, 'token')}"
            return "pages", OfferReply(pull_id, refused=True, reason=reason)
        need = page_count(offer.tokens, ctx.layout.block_size)
        if need > ctx.layout.blocks or (not ctx.delay and not ctx.admission.fits_ever(need)):
            reason = (
                f"{format_count(need, 'KV block is', 'KV blocks are')} more than pd_buffer_size and the KV cache "
                f"allow ({ctx.admission.total})"
            )
            return "too large", OfferReply(pull_id, refused=True, reason=reason)
        return None

    def _find(self, process: PeerProcess, pull_id: int) -> ReceiveSession | None:
        """The transfer that a frame is about; None for one that has ended, or never was."""
        session = self.sessions.pulls.get((process.incarnation, pull_id))
        if session is None and pull_id > process.highest:
            self._ban(process, "unknown", f"hand-over {pull_id} was never offered")
        elif session is None:
            self.ctx.counter.late += 1
        return session

    def _on_ready(self, peer: int, process: PeerProcess, ready: Ready) -> None:
        session = self._find(process, ready.pull_id)
        if session is None or session.end_reason:
            return None
        if self.ctx.push and not self.ctx.shared:
            return self._ban(process, "ready", "Ready, where Data was due")
        wrong = session.objection(ready)
        if wrong is not None:
            return self._ban(process, "ready", wrong)
        self.sessions.note_progress(session)
        session.ready(ready)
        return self.sessions.look(session)

    def _on_data(self, peer: int, process: PeerProcess, data: Data) -> None:
        session = self._find(process, data.pull_id)
        if session is None:
            return None
        wrong: str | None = None
        if self.ctx.shared:
            wrong = "bytes where memory is shared"
        elif not self.ctx.push:
            wrong = session.answer(peer, data)
        elif session.end_reason:
            return None
        else:
            wrong = session.objection(data) if data.epochs_ok else "pages that are gone, in push mode"
            if wrong is None:
                session.data(peer, data)
        if wrong is not None:
            return self._ban(process, "data", wrong)
        self.sessions.note_progress(session)
        return self.sessions.look(session)

    def _on_abandon(self, peer: int, process: PeerProcess, abandon: Abandon) -> None:
        session = self._find(process, abandon.pull_id)
        if session is not None:
            session.drained = True
            final = self.ctx.push or not session.wanted
            reason = f"the sender gave up: {abandon.reason}"
            self.sessions.lose(session, reason, final=final, code="abandoned")

    def _on_drained(self, peer: int, process: PeerProcess, drained: Drained) -> None:
        session = self._find(process, drained.pull_id)
        if session is not None:
            session.drained = True
            session.settle()
            self.sessions.look(session)

    def _on_acknowledged(self, peer: int, process: PeerProcess, ack: DoneAck) -> None:
        ctx = self.ctx
        if not ctx.dones.acknowledged((process.incarnation, ack.pull_id)):
            ctx.counter.duplicates += 1
        elif ack.status == "late":
            ctx.counter.late += 1
        self.reap(process)

    def _on_renewed(self, peer: int, process: PeerProcess, renewed: Renewed) -> None:
        for pull_id in renewed.gone:
            session = self.sessions.pulls.get((process.incarnation, pull_id))
            if session is not None and session.is_reading:
                final = not self.ctx.shared
                self.sessions.lose(session, "the sender no longer keeps it", final=final, code="expired")
