"""The other side of a receiving machine: connections to senders, and their frames."""

from __future__ import annotations

from homenode.transfer.scheduler_events import Offered
from homenode.transfer.state.machine import Close, Connected
from homenode.transfer.state.pages import difference, page_count
from homenode.transfer.state.peers import PeerProcess
from homenode.transfer.state.receive_session import ReceiveSession
from homenode.transfer.state.receiver_sessions import ReceiverSessions
from homenode.transfer.wire.message import Abandon, Data, DoneAck, Drained, Message, Offer, OfferReply, Ready, Renewed
from homenode.units import format_count


class SenderPeers(ReceiverSessions):
    """What senders say, and what becomes of their hand-overs when they are lost."""

    # Connections

    def _connected(self, connected: Connected) -> None:
        state = self.state
        self._connecting.pop(connected.address, None)
        state.deadlines.drop(("connect", connected.address))
        wrong = "this engine receives KV, and so does the other" if connected.hello.role != "sender" else None
        wrong = wrong or next(
            filter(None, (difference(buffer.layout, state.layout) for buffer in connected.hello.buffers)), None
        )
        if wrong:
            state.act(Close(connected.peer, wrong))
            return self._unreachable(connected.address, wrong, b"")
        process = state.processes.connected(
            connected.peer, connected.hello, connected.address, state.now, connected.bases
        )
        for incoming in self._with(process):
            incoming.cancel_again()
        if not connected.address:
            return None
        for done in state.dones.of(process.incarnation):
            state.send(connected.peer, done)
        for incoming in self._with(process):
            incoming.pump()
            self._look(incoming)
        self._unreachable(connected.address, "another process answers there", process.incarnation)
        return self._reap(process)

    def _connect_failed(self, address: str, reason: str) -> None:
        self._connecting.pop(address, None)
        self.state.deadlines.drop(("connect", address))
        self._unreachable(address, reason, b"")

    def _unreachable(self, address: str, reason: str, but: bytes) -> None:
        """The done channel of a sender cannot be had: what is not in shared memory cannot be read."""
        for incarnation in [key for key, at in self._done_at.items() if at == address and key != but]:
            process = self.state.processes.get(incarnation)
            if process is None or but:
                self.state.dones.forget(incarnation)
                del self._done_at[incarnation]
            if process is not None and not self.state.shared and not self.state.push:
                for incoming in self._with(process):
                    incoming.lose(f"its done channel: {reason}", hard=True)
                    incoming.settle()
                    self._look(incoming)
            if process is not None:
                process.failures = min(process.failures + 1, 6)
                self.state.deadlines.set(
                    ("reconnect", incarnation), self.state.now + self._limits.backoff * 2**process.failures
                )

    def _lost(self, peer: int, reason: str, dead: bool) -> None:
        process = self.state.processes.lost(peer, dead)
        if process is not None:
            self._after_loss(process, reason)

    def _after_loss(self, process: PeerProcess, reason: str) -> None:
        if process.dead:
            self.state.dones.forget(process.incarnation)
        if process.came is None or process.dead:
            self._lose_all(process, f"the sender was lost: {reason}")
        for incoming in self._with(process):
            incoming.cancel_again()
        if process.made is None and not process.dead:
            for incoming in self._with(process):
                incoming.unanswered()
                incoming.pump()
                self._look(incoming)
            if self._with(process) or self.state.dones.waits_for(process.incarnation):
                self._ensure_done(process)
        self._reap(process)

    def _lose_all(self, process: PeerProcess, reason: str, code: str = "lost") -> None:
        """Nothing more is announced. What was announced in shared memory can still be read, even if the process is
        gone."""
        state = self.state
        soft = state.shared and not state.push and not process.banned
        for incoming in self._with(process):
            incoming.lose(reason, hard=not soft, code=code)
            if incoming.stage == "queued":
                self._remove(incoming)
                continue
            incoming.settle()
            self._look(incoming)

    def _violation(self, process: PeerProcess, code: str, reason: str) -> None:
        """It broke the protocol: its hand-overs end, and its connections, where it may still write once it cannot any
        more."""
        state = self.state
        state.tally.violations[code] += 1
        process.banned = reason
        state.dones.forget(process.incarnation)
        self._lose_all(process, f"the sender broke the protocol: {reason}", "protocol")
        in_place = any(incoming.placed for incoming in self._with(process))  # to close would be to let go of its memory
        if not (state.push and state.shared) and not in_place:
            for peer in sorted(process.live):
                self._cut(process, peer, reason)
        self._reap(process)

    def _cut(self, process: PeerProcess, peer: int, reason: str) -> None:
        """End one connection."""
        if peer in process.live:
            self.state.act(Close(peer, reason))
            self.state.processes.lost(peer, False)
            self.state.processes.closed(peer)
            self._after_loss(process, reason)

    # Frames

    def _from_peer(self, peer: int, message: Message) -> None:
        process = self.state.processes.of(peer)
        if process is None or peer not in process.live:
            return
        process.heard, process.asked, process.silent = self.state.now, None, False
        if process.banned and not isinstance(message, Drained):
            return
        match message:
            case Offer() if peer != process.came:
                self._violation(process, "wrong channel", "an offer on a done channel")
            case Offer():
                self._offered(peer, process, message)
            case DoneAck(pull_id, status):
                self._acknowledged(process, pull_id, status)
            case Renewed(_, gone):
                self._renewed(process, gone)
            case Ready(pull_id) | Data(pull_id) | Abandon(pull_id) | Drained(pull_id):
                self._about(peer, process, pull_id, message)
            case _:
                self._violation(process, "wrong role", f"{type(message).__name__} from a sender")

    def _offered(self, peer: int, process: PeerProcess, offer: Offer) -> None:
        state = self.state
        objection = self._objection(process, offer)
        if objection is not None:
            return self._violation(process, "offer", objection)
        process.highest = offer.pull_id
        incoming = ReceiveSession(state, process, offer, state.now)
        need = page_count(offer.tokens, state.layout.block_size)
        refusal = self._refusal(process, offer, need)
        if refusal is not None:
            code, reply = refusal
            state.tally.refused[code] += 1
            return state.send(peer, reply)
        incoming.in_place = state.in_place and bool(process.bases) and process.bases.keys() >= process.buffers.keys()
        self.tickets[offer.ticket] = self.pulls[process.incarnation, offer.pull_id] = incoming
        if offer.done:
            self._done_at[process.incarnation] = offer.done
            self._ensure_done(process)
        if state.delay:
            incoming.stage = "open"
            self._reply(incoming, OfferReply(offer.pull_id, in_place=incoming.in_place))
            state.tell(
                Offered(
                    state.now, offer.ticket, offer.tokens, offer.page_tokens, offer.identities, False, incoming.in_place
                )
            )
            return self._opened(incoming)
        most = self._limits.room if offer.room_s is None else min(offer.room_s, self._limits.room)
        state.deadlines.set(("room", offer.ticket), state.now + most)
        state.admission.wait(offer.ticket, process.incarnation.hex(), need)
        self._admit()
        if incoming.stage == "queued":
            state.admission.waits += 1
        return None

    def _objection(self, process: PeerProcess, offer: Offer) -> str | None:
        """What no honest sender says."""
        if offer.pull_id <= process.highest:
            return f"hand-over {offer.pull_id} was offered before"
        if (
            not offer.tokens
            or not offer.page_tokens
            or page_count(offer.tokens, offer.page_tokens) != len(offer.identities)
        ):
            return (
                f"{len(offer.identities)} identities for {format_count(offer.tokens, 'token')} in pages of "
                f"{offer.page_tokens}"
            )
        if self.state.push:
            return None
        if not offer.done or self._done_at.get(process.incarnation, offer.done) != offer.done:
            return "no done address, or another one than before"
        if any(layout.block_size != offer.page_tokens for layout in process.buffers.values()):
            return f"pages of {format_count(offer.page_tokens, 'token')}, unlike the buffers registered"
        return None

    def _refusal(self, process: PeerProcess, offer: Offer, need: int) -> tuple[str, OfferReply] | None:
        state = self.state
        if self._draining:
            return "draining", OfferReply(offer.pull_id, refused=True, reason=self._draining)
        if self._released.take(offer.ticket):
            return "released", OfferReply(offer.pull_id, refused=True, reason="the ticket was given up before it came")
        if offer.ticket in self.tickets:
            return "duplicate", OfferReply(
                offer.pull_id, refused=True, reason=f"ticket {offer.ticket!r} is in hand already"
            )
        theirs = self._with(process)
        if (
            len(theirs) >= self._limits.offers
            or sum(i.pages for i in theirs) + len(offer.identities) > self._limits.announced
        ):
            return "too many", OfferReply(
                offer.pull_id, alloc_failed=True, reason="too many hand-overs at once", retry_after_s=1.0
            )
        if offer.page_tokens % 16:
            return "pages", OfferReply(
                offer.pull_id, refused=True, reason=f"pages of {format_count(offer.page_tokens, 'token')}"
            )
        if need > state.layout.blocks or (not state.delay and not state.admission.fits_ever(need)):
            reason = (
                f"{format_count(need, 'KV block is', 'KV blocks are')} more than pd_buffer_size and the KV cache "
                f"allow ({state.admission.total})"
            )
            return "too large", OfferReply(offer.pull_id, refused=True, reason=reason)
        return None

    def _about(self, peer: int, process: PeerProcess, pull_id: int, message: Message) -> None:
        incoming = self.pulls.get((process.incarnation, pull_id))
        if incoming is None:
            if pull_id > process.highest:
                self._violation(process, "unknown", f"hand-over {pull_id} was never offered")
            else:
                self.state.tally.late += 1
            return None
        match message:
            case Ready():
                self._ready(incoming, process, message)
            case Data():
                self._data(peer, incoming, process, message)
            case Abandon(_, reason):
                self._abandon(incoming, reason)
            case Drained():
                incoming.drained = True
                incoming.settle()
        return self._look(incoming)

    def _ready(self, incoming: ReceiveSession, process: PeerProcess, ready: Ready) -> None:
        if incoming.over:
            return None
        wrong = (
            incoming.objection(ready)
            if not (self.state.push and not self.state.shared)
            else "Ready, where Data was due"
        )
        if wrong is not None:
            return self._violation(process, "ready", wrong)
        self._progress(incoming)
        return incoming.ready(ready)

    def _data(self, peer: int, incoming: ReceiveSession, process: PeerProcess, data: Data) -> None:
        if self.state.shared:
            return self._violation(process, "data", "bytes where memory is shared")
        if not self.state.push:
            wrong = incoming.answer(peer, data)
        elif incoming.over:
            return None
        else:
            wrong = incoming.objection(data) if data.epochs_ok else "pages that are gone, in push mode"
            if wrong is None:
                incoming.data(peer, data)
        if wrong is not None:
            return self._violation(process, "data", wrong)
        return self._progress(incoming)

    def _abandon(self, incoming: ReceiveSession, reason: str) -> None:
        incoming.drained = True
        incoming.lose(f"the sender gave up: {reason}", hard=self.state.push or not incoming.wanted, code="abandoned")
        if incoming.stage == "queued":
            return self._remove(incoming)
        return incoming.settle()

    def _acknowledged(self, process: PeerProcess, pull_id: int, status: str) -> None:
        state = self.state
        if not state.dones.acknowledged((process.incarnation, pull_id)):
            state.tally.duplicates += 1
        elif status == "late":
            state.tally.late += 1
        self._reap(process)

    def _renewed(self, process: PeerProcess, gone: list[int]) -> None:
        for pull_id in gone:
            incoming = self.pulls.get((process.incarnation, pull_id))
            if incoming is None or not incoming.reading:
                continue
            incoming.lose("the sender no longer keeps it", hard=not self.state.shared, code="expired")
            incoming.settle()
            self._look(incoming)
