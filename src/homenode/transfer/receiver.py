"""The receiving machine: takes offers, finds room, reads and verifies, and tells senders when they may forget. Without I/O and without a clock.

What a hand-over goes through is in `incoming`; here is who says what to it, and what happens to all hand-overs of a process at once.
"""

from __future__ import annotations

from homenode.transfer.ended import Released as ReleasedTickets
from homenode.transfer.figures import TransferFigures
from homenode.transfer.incoming import Incoming
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
from homenode.transfer.message import Abandon, Data, DoneAck, Drained, Message, Offer, OfferReply, PageRef, Ready, Renew, Renewed
from homenode.transfer.pages import difference, first_target, page_count
from homenode.transfer.processes import Process
from homenode.transfer.receiving import Receiving
from homenode.transfer.seam import Claimed, Failed, Fetch, Forgotten, NoRoom, Offered, Released, Room, Stopped, ToAgent
from homenode.transfer.settings import TransferConfig


class ReceiverMachine:
    """Takes KV from any number of senders."""

    def __init__(self, own: Own, settings: TransferConfig, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._state = Receiving(own, settings, self._limits)
        self._retry_after = settings.pd_alloc_fail_backoff_ttl
        self._tickets: dict[str, Incoming] = {}
        self._pulls: dict[tuple[bytes, int], Incoming] = {}
        self._going: dict[int, Incoming] = {}
        self._done_at: dict[bytes, str] = {}  # incarnation -> its done address
        self._connecting: dict[str, None] = {}
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
            case Copied(token, digests):
                if (incoming := self._going.pop(token, None)) is not None:
                    incoming.copied(token, digests)
                    self._look(incoming)
            case Sent():
                pass
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
        """No new offers are taken, and what is not complete is called off. `idle` once nothing is left."""
        self._begin(now)
        self._draining = "the engine is shutting down"
        for incoming in list(self._tickets.values()):
            self._call_off(incoming, self._draining)
        return self._end()

    @property
    def idle(self) -> bool:
        return not self._tickets and not len(self._state.dones)

    def figures(self) -> TransferFigures:
        state = self._state
        waiting = sum(not incoming.complete and not incoming.over for incoming in self._tickets.values())
        return state.tally.figures(pinned=state.ledger.pinned, waiting=waiting, waits=state.admission.waits, peers=len(state.processes))

    # The scheduler

    def _from_engine(self, message: ToAgent) -> None:
        incoming = self._tickets.get(message.ticket)
        match message:
            case Room() | NoRoom() if incoming is None or incoming.stage != "asked":
                if isinstance(message, Room) and incoming is None:
                    self._state.tell(Forgotten(self._state.now, message.ticket))
            case Room() if incoming is not None:
                self._room(incoming, message)
            case NoRoom(_, free, reason) if incoming is not None:
                self._no_room(incoming, free, reason)
            case Fetch() if incoming is not None:
                self._fetch(incoming, message)
            case Stopped() if incoming is not None:
                self._stopped(incoming)
            case Fetch(ticket) | Stopped(ticket):
                self._state.tell(Failed(self._state.now, ticket, "nothing is on its way under this ticket"))
            case Released(ticket) if incoming is None:
                self._released.add(ticket)
            case Released() if incoming is not None and not incoming.wanted:
                self._give_up(incoming)
            case Claimed() if incoming is not None and (incoming.complete or incoming.told_end or incoming.blocks is None):
                self._claimed(incoming)
            case Claimed() if incoming is not None and not incoming.quarantined:
                self._stopped(incoming)

    def _room(self, incoming: Incoming, room: Room) -> None:
        if incoming.over:
            return self._forget(incoming)
        if not incoming.place(room.blocks, room.held):
            self._reply(incoming, OfferReply(incoming.offer.pull_id, refused=True, reason="internal: the blocks do not fit"))
            incoming.lose("the blocks do not fit", hard=True, code="internal")
            return self._forget(incoming)
        incoming.stage = "open"
        state, offer = self._state, incoming.offer
        state.deadlines.drop(("room", offer.ticket))
        size = state.layout.block_size
        state.admission.keep(offer.ticket, len(state.ledger.kept(offer.ticket)))
        first = first_target(room.held, offer.page_tokens, size) if room.held < incoming.pages else len(room.blocks)
        past = page_count(offer.tokens, size)
        targets = [PageRef(state.own.cache.id, block, 0) for block in room.blocks[first:past]] if state.push else []
        self._reply(incoming, OfferReply(offer.pull_id, list(range(room.held)), targets))
        self._opened(incoming)
        incoming.begin()
        return self._look(incoming)

    def _no_room(self, incoming: Incoming, free: int, reason: str) -> None:
        if not incoming.over:
            self._reply(incoming, self._full(incoming, free, reason))
        self._remove(incoming)

    def _fetch(self, incoming: Incoming, fetch: Fetch) -> None:
        state = self._state
        incoming.wanted = True
        state.deadlines.drop(("ttl", incoming.ticket))
        if incoming.told_end:
            if not incoming.quarantined:
                state.tell(Failed(state.now, incoming.ticket, incoming.over or "it was called off"))
            return
        if incoming.stage == "open" and not incoming.complete:
            state.deadlines.set(("progress", incoming.ticket), state.now + self._limits.progress)
        if state.delay and incoming.blocks is None:
            if incoming.place(fetch.blocks, fetch.held):
                incoming.begin()
            else:
                incoming.lose("the blocks do not fit", hard=True, code="internal")
                incoming.settle()
        self._look(incoming)

    def _claimed(self, incoming: Incoming) -> None:
        """Nobody writes to its blocks, or there are none."""
        if incoming.quarantined or incoming.stage != "open":
            return
        if not incoming.complete and not incoming.told_end:
            incoming.let_go()
        incoming.ended = True
        self._look(incoming)

    def _give_up(self, incoming: Incoming) -> None:
        """No request will come."""
        if incoming.stage == "open":
            incoming.over = incoming.over or "the ticket was given up"
            return self._forget(incoming)
        return self._call_off(incoming, "the ticket was given up")

    def _stopped(self, incoming: Incoming) -> None:
        if incoming.stage == "open":
            incoming.finish("stopped")
            return self._look(incoming)
        if not incoming.over:
            self._reply(incoming, OfferReply(incoming.offer.pull_id, refused=True, reason="the request ended"))
            incoming.lose("the request ended", hard=True, code="stopped")
        self._state.tell(Failed(self._state.now, incoming.ticket, "the request ended"))
        if incoming.stage == "queued":
            self._remove(incoming)
        return None

    def _call_off(self, incoming: Incoming, reason: str) -> None:
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

    # Offers

    def _offered(self, peer: int, process: Process, offer: Offer) -> None:
        state = self._state
        objection = self._objection(process, offer)
        if objection is not None:
            return self._violation(process, "offer", objection)
        process.highest = offer.pull_id
        incoming = Incoming(state, process, offer, state.now)
        need = page_count(offer.tokens, state.layout.block_size)
        refusal = self._refusal(process, offer, need)
        if refusal is not None:
            code, reply = refusal
            state.tally.refused[code] += 1
            return state.send(peer, reply)
        self._tickets[offer.ticket] = self._pulls[process.incarnation, offer.pull_id] = incoming
        if offer.done:
            self._done_at[process.incarnation] = offer.done
            self._ensure_done(process)
        if state.delay:
            incoming.stage = "open"
            self._reply(incoming, OfferReply(offer.pull_id))
            state.tell(Offered(state.now, offer.ticket, offer.tokens, offer.page_tokens, offer.identities, False))
            return self._opened(incoming)
        state.deadlines.set(("room", offer.ticket), state.now + self._limits.room)
        state.admission.wait(offer.ticket, process.incarnation.hex(), need)
        self._admit()
        if incoming.stage == "queued":
            state.admission.waits += 1
        return None

    def _objection(self, process: Process, offer: Offer) -> str | None:
        """What no honest sender says."""
        if offer.pull_id <= process.highest:
            return f"hand-over {offer.pull_id} was offered before"
        if not offer.tokens or not offer.page_tokens or page_count(offer.tokens, offer.page_tokens) != len(offer.identities):
            return f"{len(offer.identities)} identities for {offer.tokens} tokens in pages of {offer.page_tokens}"
        if self._state.push:
            return None
        if not offer.done or self._done_at.get(process.incarnation, offer.done) != offer.done:
            return "no done address, or another one than before"
        if any(layout.block_size != offer.page_tokens for layout in process.buffers.values()):
            return f"pages of {offer.page_tokens} tokens, unlike the buffers registered"
        return None

    def _refusal(self, process: Process, offer: Offer, need: int) -> tuple[str, OfferReply] | None:
        state = self._state
        if self._draining:
            return "draining", OfferReply(offer.pull_id, refused=True, reason=self._draining)
        if self._released.take(offer.ticket):
            return "released", OfferReply(offer.pull_id, refused=True, reason="the ticket was given up before it came")
        if offer.ticket in self._tickets:
            return "duplicate", OfferReply(offer.pull_id, refused=True, reason=f"ticket {offer.ticket!r} is in hand already")
        theirs = self._with(process)
        if len(theirs) >= self._limits.offers or sum(i.pages for i in theirs) + len(offer.identities) > self._limits.announced:
            return "too many", OfferReply(offer.pull_id, alloc_failed=True, reason="too many hand-overs at once", retry_after_s=1.0)
        if offer.page_tokens % 16:
            return "pages", OfferReply(offer.pull_id, refused=True, reason=f"pages of {offer.page_tokens} tokens")
        if need > state.layout.blocks or (not state.delay and not state.admission.fits_ever(need)):
            reason = f"{need} KV blocks are more than pd_buffer_size and the KV cache allow ({state.admission.total})"
            return "too large", OfferReply(offer.pull_id, refused=True, reason=reason)
        return None

    def _admit(self) -> None:
        """Whoever's turn it is: the scheduler is asked for its blocks."""
        state = self._state
        while (ticket := state.admission.admit(lambda *_: True, max(len(state.processes), 1))) is not None:
            incoming = self._tickets[ticket]
            incoming.stage = "asked"
            offer = incoming.offer
            state.tell(Offered(state.now, ticket, offer.tokens, offer.page_tokens, offer.identities, True))

    def _opened(self, incoming: Incoming) -> None:
        state, incarnation = self._state, incoming.process.incarnation
        if not incoming.wanted:
            state.deadlines.set(("ttl", incoming.ticket), state.now + state.ttl)
        else:
            state.deadlines.set(("progress", incoming.ticket), state.now + self._limits.progress)
        if incoming.process.beating:
            return
        incoming.process.beating = True
        state.deadlines.set(("beat", incarnation), state.now + self._beat(incoming))

    def _beat(self, incoming: Incoming) -> float:
        return max(min(self._limits.heartbeat, incoming.offer.lease_s / 3), 0.01)

    def _reply(self, incoming: Incoming, reply: OfferReply) -> None:
        self._state.send(incoming.process.came, reply)

    def _full(self, incoming: Incoming, free: int, reason: str) -> OfferReply:
        self._state.tally.refused["no room"] += 1
        return OfferReply(incoming.offer.pull_id, alloc_failed=True, free_pages=free, retry_after_s=self._retry_after, reason=reason)

    # Connections

    def _connected(self, connected: Connected) -> None:
        state = self._state
        self._connecting.pop(connected.address, None)
        state.deadlines.drop(("connect", connected.address))
        wrong = "this engine receives KV, and so does the other" if connected.hello.role != "sender" else None
        wrong = wrong or next(filter(None, (difference(buffer.layout, state.layout) for buffer in connected.hello.buffers)), None)
        if wrong:
            state.act(Close(connected.peer, wrong))
            return self._unreachable(connected.address, wrong, b"")
        process = state.processes.connected(connected.peer, connected.hello, connected.address, state.now)
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
        self._state.deadlines.drop(("connect", address))
        self._unreachable(address, reason, b"")

    def _unreachable(self, address: str, reason: str, but: bytes) -> None:
        """The done channel of a sender cannot be had: what is not in shared memory cannot be read."""
        for incarnation in [key for key, at in self._done_at.items() if at == address and key != but]:
            process = self._state.processes.get(incarnation)
            if process is None or but:
                self._state.dones.forget(incarnation)
                del self._done_at[incarnation]
            if process is not None and not self._state.shared and not self._state.push:
                for incoming in self._with(process):
                    incoming.lose(f"its done channel: {reason}", hard=True)
                    incoming.settle()
                    self._look(incoming)
            if process is not None:
                process.failures = min(process.failures + 1, 6)
                self._state.deadlines.set(("reconnect", incarnation), self._state.now + self._limits.backoff * 2**process.failures)

    def _ensure_done(self, process: Process) -> None:
        """Open the sender's done channel, unless it is."""
        address = self._done_at.get(process.incarnation)
        if address is None or process.made is not None or process.dead or process.banned or address in self._connecting:
            return
        self._connecting[address] = None
        self._state.deadlines.set(("connect", address), self._state.now + self._limits.connect)
        self._state.act(Connect(address))

    def _lost(self, peer: int, reason: str, dead: bool) -> None:
        process = self._state.processes.lost(peer, dead)
        if process is not None:
            self._after_loss(process, reason)

    def _after_loss(self, process: Process, reason: str) -> None:
        if process.dead:
            self._state.dones.forget(process.incarnation)
        if process.came is None or process.dead:
            self._lose_all(process, f"the sender was lost: {reason}")
        for incoming in self._with(process):
            incoming.cancel_again()
        if process.made is None and not process.dead:
            for incoming in self._with(process):
                incoming.unanswered()
                incoming.pump()
                self._look(incoming)
            if self._with(process) or self._state.dones.waits_for(process.incarnation):
                self._ensure_done(process)
        self._reap(process)

    def _lose_all(self, process: Process, reason: str, code: str = "lost") -> None:
        """Nothing more is announced. What was announced in shared memory can still be read, even if the process is gone."""
        state = self._state
        soft = state.shared and not state.push and not process.banned
        for incoming in self._with(process):
            incoming.lose(reason, hard=not soft, code=code)
            if incoming.stage == "queued":
                self._remove(incoming)
                continue
            incoming.settle()
            self._look(incoming)

    def _with(self, process: Process) -> list[Incoming]:
        return [incoming for incoming in self._pulls.values() if incoming.process is process]

    def _reap(self, process: Process) -> None:
        """Let go of connections that nothing hangs on any more."""
        state = self._state
        if self._with(process):
            return
        idle = process.came is None and not state.dones.waits_for(process.incarnation)
        if process.banned or process.dead or idle:
            for peer in sorted(process.live):
                state.processes.lost(peer, False)
        for peer in state.processes.forget(process):
            state.act(Close(peer, process.banned or "done with"))
        if state.processes.get(process.incarnation) is None and not state.dones.waits_for(process.incarnation):
            self._done_at.pop(process.incarnation, None)

    def _violation(self, process: Process, code: str, reason: str) -> None:
        """It broke the protocol: its hand-overs end, and its connections, where it may still write once it cannot any more."""
        state = self._state
        state.tally.violations[code] += 1
        process.banned = reason
        state.dones.forget(process.incarnation)
        self._lose_all(process, f"the sender broke the protocol: {reason}", "protocol")
        if not (state.push and state.shared):
            for peer in sorted(process.live):
                self._cut(process, peer, reason)
        self._reap(process)

    def _cut(self, process: Process, peer: int, reason: str) -> None:
        """End one connection."""
        if peer in process.live:
            self._state.act(Close(peer, reason))
            self._state.processes.lost(peer, False)
            self._state.processes.closed(peer)
            self._after_loss(process, reason)

    # Frames

    def _from_peer(self, peer: int, message: Message) -> None:
        process = self._state.processes.of(peer)
        if process is None or peer not in process.live:
            return
        process.heard, process.asked, process.silent = self._state.now, None, False
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

    def _about(self, peer: int, process: Process, pull_id: int, message: Message) -> None:
        incoming = self._pulls.get((process.incarnation, pull_id))
        if incoming is None:
            if pull_id > process.highest:
                self._violation(process, "unknown", f"hand-over {pull_id} was never offered")
            else:
                self._state.tally.late += 1
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

    def _ready(self, incoming: Incoming, process: Process, ready: Ready) -> None:
        if incoming.over:
            return None
        wrong = incoming.objection(ready) if not (self._state.push and not self._state.shared) else "Ready, where Data was due"
        if wrong is not None:
            return self._violation(process, "ready", wrong)
        self._progress(incoming)
        return incoming.ready(ready)

    def _data(self, peer: int, incoming: Incoming, process: Process, data: Data) -> None:
        if self._state.shared:
            return self._violation(process, "data", "bytes where memory is shared")
        if not self._state.push:
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

    def _progress(self, incoming: Incoming) -> None:
        deadlines, now = self._state.deadlines, self._state.now
        if incoming.wanted:
            deadlines.set(("progress", incoming.ticket), now + self._limits.progress)
        else:
            deadlines.set(("ttl", incoming.ticket), now + self._state.ttl)

    def _abandon(self, incoming: Incoming, reason: str) -> None:
        incoming.drained = True
        incoming.lose(f"the sender gave up: {reason}", hard=self._state.push or not incoming.wanted, code="abandoned")
        if incoming.stage == "queued":
            return self._remove(incoming)
        return incoming.settle()

    def _acknowledged(self, process: Process, pull_id: int, status: str) -> None:
        state = self._state
        if not state.dones.acknowledged((process.incarnation, pull_id)):
            state.tally.duplicates += 1
        elif status == "late":
            state.tally.late += 1
        self._reap(process)

    def _renewed(self, process: Process, gone: list[int]) -> None:
        for pull_id in gone:
            incoming = self._pulls.get((process.incarnation, pull_id))
            if incoming is None or not incoming.reading:
                continue
            incoming.lose("the sender no longer keeps it", hard=not self._state.shared, code="expired")
            incoming.settle()
            self._look(incoming)

    # Time

    def _due(self, key: object) -> None:
        match key:
            case ("room", str(ticket)):
                self._no_answer(self._tickets[ticket])
            case ("ttl", str(ticket)):
                self._forget(self._tickets[ticket])
            case ("progress", str(ticket)):
                self._stuck(self._tickets[ticket])
            case ("drain", str(ticket)):
                self._tickets[ticket].not_drained()
            case ("read", str(ticket), int()):
                self._slow(self._tickets[ticket])
            case ("bytes", int(token)):
                if (incoming := self._going.get(token)) is not None:
                    self._cut(incoming.process, incoming.copies[token].peer, "bytes did not come in time")
            case ("beat", bytes(incarnation)):
                self._heartbeat(incarnation)
            case ("done", bytes(incarnation), int(pull_id)):
                self._again(incarnation, pull_id)
            case ("connect", str(address)):
                self._connect_failed(address, "no connection in time")
            case ("reconnect", bytes(incarnation)):
                process = self._state.processes.get(incarnation)
                if process is not None and (self._with(process) or self._state.dones.waits_for(incarnation)):
                    self._ensure_done(process)

    def _no_answer(self, incoming: Incoming) -> None:
        """There was no room in time, or the scheduler was silent; should it still answer, its blocks go back."""
        self._reply(incoming, self._full(incoming, self._state.admission.free, "no room in time"))
        if incoming.stage == "queued":
            return self._remove(incoming)
        return incoming.lose("no room in time", hard=True, code="room")

    def _stuck(self, incoming: Incoming) -> None:
        if not incoming.complete:
            incoming.lose("the sender announced nothing for too long", hard=False, code="progress")
            incoming.settle()
            self._look(incoming)

    def _slow(self, incoming: Incoming) -> None:
        incoming.lose("what was asked for did not come in time", hard=True, code="slow")
        incoming.settle()
        self._look(incoming)

    def _forget(self, incoming: Incoming) -> None:
        """No request came for it, or its blocks came too late."""
        if incoming.stage == "asked":
            incoming.ended = True
            self._state.tally.forgotten += 1
            self._state.tell(Forgotten(self._state.now, incoming.ticket))
        else:
            incoming.over = incoming.over or "no request came for it"
            incoming.finish("forgotten")
        self._look(incoming)

    def _heartbeat(self, incarnation: bytes) -> None:
        process = self._state.processes.get(incarnation)
        if process is None:
            return
        reading = [incoming for incoming in self._with(process) if incoming.reading]
        process.beating = bool(reading)
        if not reading:
            return
        now, state = self._state.now, self._state
        if process.asked is not None and now - process.asked >= self._limits.silence and not process.silent:
            process.silent = True
            self._lose_all(process, "the sender is silent", "silent")
        peer = process.by_made
        if peer is not None:
            state.send(peer, Renew([incoming.offer.pull_id for incoming in reading]))
            process.asked = now if process.asked is None else process.asked
        self._ensure_done(process)
        state.deadlines.set(("beat", incarnation), now + min(self._beat(incoming) for incoming in reading))

    def _again(self, incarnation: bytes, pull_id: int) -> None:
        state = self._state
        done = state.dones.again((incarnation, pull_id), state.now)
        process = state.processes.get(incarnation)
        if process is None:
            state.dones.forget(incarnation)
        elif done is not None:
            state.send(process.by_made, done)
            self._ensure_done(process)
        else:
            self._reap(process)

    # Around each step

    def _begin(self, now: float) -> None:
        self._state.now, self._state.actions = now, []

    def _end(self) -> list[Action]:
        return self._state.actions

    def _look(self, incoming: Incoming) -> None:
        """After anything happened to a hand-over."""
        for token in incoming.copies:
            self._going[token] = incoming
        if incoming.ended and self._tickets.get(incoming.ticket) is incoming:
            self._remove(incoming)
        elif incoming.told_end or incoming.complete:
            self._state.deadlines.drop(("progress", incoming.ticket))

    def _remove(self, incoming: Incoming) -> None:
        state, ticket = self._state, incoming.ticket
        if self._tickets.get(ticket) is not incoming:
            return
        del self._tickets[ticket], self._pulls[incoming.process.incarnation, incoming.offer.pull_id]
        for name in ("room", "ttl", "progress", "drain"):
            state.deadlines.drop((name, ticket))
        state.admission.leave(ticket, incoming.process.incarnation.hex())
        state.admission.release(ticket)
        state.ledger.end(ticket)
        self._reap(incoming.process)
        self._admit()
