"""The other side of a sending machine: connections to receivers, and their frames."""

from __future__ import annotations

from homenode.transfer.scheduler_events import SendAdmitted
from homenode.transfer.state.machine import Close, Connected
from homenode.transfer.state.pages import difference
from homenode.transfer.state.peers import PeerBreaker, PeerProcess
from homenode.transfer.state.send_session import SendSession
from homenode.transfer.state.sender_sessions import Receiver, SenderSessions
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


class ReceiverPeers(SenderSessions):
    """What receivers say, and what becomes of their hand-overs when they are lost."""

    # Connections

    def _connected(self, connected: Connected) -> None:
        state = self.state
        if connected.address and connected.address in self._receivers:
            self._receivers[connected.address].connecting = False
            state.deadlines.drop(("connect", connected.address))
        if connected.hello.role != "receiver":
            state.act(Close(connected.peer, "this engine sends KV, and so does the other"))
            return self._refuse_waiting(connected.address, "peer", "the engine there is no receiver")
        different = next(
            filter(None, (difference(state.layout, buffer.layout) for buffer in connected.hello.buffers)), None
        )
        if different is not None:
            state.act(Close(connected.peer, different))
            return self._refuse_waiting(connected.address, "peer", different)
        process = state.processes.connected(connected.peer, connected.hello, connected.address, state.now)
        if connected.address:
            receiver = self._receivers.setdefault(
                connected.address, Receiver(connected.address, PeerBreaker(self._breaker_ttl))
            )
            receiver.process, receiver.failure = process, ""
        return self._admit()

    def _connect_failed(self, address: str, reason: str) -> None:
        receiver = self._receivers.get(address)
        if receiver is None:
            return
        receiver.connecting = False
        receiver.failed_at, receiver.failure = self.state.now, reason
        self.state.deadlines.drop(("connect", address))
        self._refuse_waiting(address, "connect", f"{address}: {reason}")

    def _lost(self, peer: int, reason: str, dead: bool) -> None:
        state = self.state
        process = state.processes.lost(peer, dead)
        if process is not None:
            self._after_loss(process, reason)

    def _after_loss(self, process: PeerProcess, reason: str) -> None:
        state = self.state
        if process.made is None:
            for outgoing in self._with(process):
                self._lost_for(outgoing, process, reason)
        for receiver in list(self._receivers.values()):
            if receiver.process is process and not receiver.connected and state.admission.waits_for(receiver.address):
                self._connect(receiver)
        self._reap(process)
        self._admit()

    def _lost_for(self, outgoing: SendSession, process: PeerProcess, reason: str) -> None:
        if not outgoing.admitted:
            return self._refuse(
                outgoing, "lost", f"the receiver was lost: {reason}", self._limits.backoff, notify=False
            )
        unreadable = (
            process.dead
            or (bool(process.banned) and not outgoing.lent)
            or (not self.state.shared and process.by_made is None)
        )
        if outgoing.told == outgoing.pages and not unreadable and not self.state.push:
            return None  # it may still be read
        outgoing.gone("lost", f"the receiver was lost: {reason}", unreadable=unreadable)
        return self._look(outgoing)

    def _violation(self, process: PeerProcess, code: str, reason: str) -> None:
        """It broke the protocol: its hand-overs end, its connections too."""
        self.state.tally.violations[code] += 1
        process.banned = reason
        if not any(outgoing.lent for outgoing in self._with(process)):
            return self._cut(process, reason)
        for outgoing in self._with(process):  # how it ends is still to be heard: it says Done, or dies
            self._lost_for(outgoing, process, reason)
        return None

    def _cut(self, process: PeerProcess, reason: str) -> None:
        for peer in sorted(process.live):
            self.state.act(Close(peer, reason))
            self.state.processes.lost(peer, False)
            self.state.processes.closed(peer)
        self._after_loss(process, reason)

    # Frames

    def _from_peer(self, peer: int, message: Message) -> None:
        process = self.state.processes.of(peer)
        if process is None or peer not in process.live or (process.banned and not isinstance(message, Done)):
            return
        process.heard = self.state.now
        match message:
            case Done(pull_id):
                self._done(peer, process, pull_id)
            case Renew(pull_ids):
                self._renew(peer, process, pull_ids)
            case OfferReply(pull_id) | Stored(pull_id) | Cancel(pull_id) | Read(pull_id):
                self._about(peer, process, pull_id, message)
            case _:
                self._violation(process, "wrong role", f"{type(message).__name__} from a receiver")

    def _about(self, peer: int, process: PeerProcess, pull_id: int, message: Message) -> None:
        outgoing = self.pulls.get(pull_id)
        if outgoing is not None and outgoing.process is not process:
            self.state.tally.forged += 1
            return self._violation(process, "forged", "a frame about another receiver's hand-over")
        if outgoing is None:
            return self._about_ended(peer, process, pull_id, message)
        match message:
            case OfferReply():
                if outgoing.admitted:
                    return self._violation(process, "offer-reply", "a second answer to an offer")
                return self._replied(outgoing, message)
            case Read() if (
                self.state.push or self.state.shared or not outgoing.admitted or not outgoing.read_by(peer, message)
            ):
                return self._violation(process, "read", "pages were asked for that are not to be read")
            case Stored(_, pages, ok, reason) if (
                not self.state.push or not outgoing.admitted or not outgoing.store(pages, ok, reason)
            ):
                return self._violation(process, "stored", "pages are said to be stored that were not sent")
            case Cancel() if not self.state.push:
                return self._violation(process, "cancel", "Cancel is for push")
            case Cancel() if not outgoing.admitted:
                self.state.send(peer, Drained(pull_id))
                return self._refuse(outgoing, "refused", "the receiver called it off", notify=False)
            case Cancel():
                outgoing.cancel()
        return self._look(outgoing)

    def _about_ended(self, peer: int, process: PeerProcess, pull_id: int, message: Message) -> None:
        if pull_id >= self._next_pull:
            return self._violation(process, "unknown", f"hand-over {pull_id} was never offered")
        match message:
            case Cancel():
                self.state.send(peer, Drained(pull_id))
            case Read(_, first):
                self.state.send(peer, Data(pull_id, first, 0, 0, [], False, epochs_ok=False))
            case OfferReply() | Stored():
                self.state.tally.late += 1
        return None

    def _replied(self, outgoing: SendSession, reply: OfferReply) -> None:
        state, receiver = self.state, self._receivers[outgoing.address]
        process = outgoing.process
        assert process is not None
        if reply.alloc_failed:
            receiver.breaker.failed(state.now, reply.retry_after_s)
            state.tally.breaker_opens += receiver.breaker.open
            left = receiver.breaker.left(state.now) or reply.retry_after_s
            reason = f"the receiver has no room ({format_count(reply.free_pages, 'page')} free): {reply.reason}"
            self._refuse(outgoing, "no room", reason, left, notify=False)
            for ticket in state.admission.waits_for(receiver.address) if receiver.breaker.open else ():
                self._refuse(self.tickets[ticket], "breaker", "the receiver has no room", left)
            return None
        if reply.refused:
            return self._refuse(outgoing, "refused", reply.reason or "the receiver refused", notify=False)
        objection = outgoing.objection(reply)
        if objection is not None:
            return self._violation(process, "offer-reply", objection)
        receiver.breaker.succeeded()
        state.deadlines.drop(("room", outgoing.ticket))
        state.deadlines.drop(("reply", outgoing.ticket))
        state.leases.grant(outgoing.pull_id, state.now)
        outgoing.open(reply)
        if outgoing.early and outgoing.held < outgoing.pages:
            return self._refuse(outgoing, "refused", "the receiver called it off", notify=False)
        state.tell(SendAdmitted(state.now, outgoing.ticket, outgoing.held))
        if outgoing.early:
            outgoing.done()
        return self._look(outgoing)

    def _done(self, peer: int, process: PeerProcess, pull_id: int) -> None:
        state, outgoing = self.state, self.pulls.get(pull_id)
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

    def _done_now(self, peer: int, outgoing: SendSession) -> None:
        state = self.state
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

    def _renew(self, peer: int, process: PeerProcess, pull_ids: list[int]) -> None:
        state = self.state
        mine = [n for n in pull_ids if (o := self.pulls.get(n)) is not None and o.process is process]
        live = set(mine) - set(state.leases.renew((n for n in mine if self.pulls[n].admitted), state.now))
        state.send(peer, Renewed(state.leases.ttl, [n for n in pull_ids if n not in live]))
