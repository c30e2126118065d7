"""The receiving machine: takes offers, finds room, reads and verifies, and tells senders when they may forget. Without
I/O and without a clock.

What a hand-over goes through is in `receive_session`; here is who says what to it, and what happens to all
hand-overs of a process at once.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import islice

from homenode.transfer.scheduler_events import Unused
from homenode.transfer.state.machine import (
    Action,
    Announcing,
    Connected,
    ConnectFailed,
    Copied,
    Expecting,
    Foreseen,
    FromEngine,
    FromPeer,
    Input,
    PeerLost,
    Sent,
)
from homenode.transfer.state.receive_session import ReceiveSession
from homenode.transfer.state.sender_peers import SenderPeers
from homenode.transfer.state.stats import TransferStats
from homenode.transfer.wire.message import Ready, Renew


class ReceiverMachine(SenderPeers):
    """Takes KV from any number of senders."""

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
                if (incoming := self.going.pop(token, None)) is not None:
                    incoming.copied(token, digests)
                    self._look(incoming)
            case Sent():
                pass
        return self._end()

    def foresee(self, input: Input, now: float) -> Foreseen | None:
        """Pages that were announced, and pages that nobody reads any more."""
        if type(input) is FromPeer and type(input.message) is Ready:
            process = self.state.processes.of(input.peer)
            if process is None or input.peer not in process.live or process.banned:
                return None
            incoming = self.pulls.get((process.incarnation, input.message.pull_id))
            return incoming.foresee(input.message, now) if incoming is not None else None
        if type(input) is FromEngine and type(input.message) is Unused:
            incoming = self.tickets.get(input.message.ticket)
            return incoming.foresee_unused() if incoming is not None else None
        return None

    def announcing(self, most: int, but: Container[str] = ()) -> list[Announcing]:
        """A receiver announces nothing."""
        return []

    def expecting(self, most: int, but: Container[str] = ()) -> list[Expecting]:
        """What can be taken as soon as it is announced."""
        found = (
            incoming.expecting()
            for incoming in self.tickets.values()
            if not incoming.complete and incoming.ticket not in but
        )
        return list(islice((one for one in found if one is not None), most))

    def tick(self, now: float) -> list[Action]:
        """Whatever is due by now."""
        self._begin(now)
        while (key := self.state.deadlines.due(now)) is not None:
            self._due(key)
        return self._end()

    def next_deadline(self) -> float | None:
        return self.state.deadlines.next()

    def drain(self, now: float) -> list[Action]:
        """No new offers are taken, and what is not complete is called off. `idle` once nothing is left."""
        self._begin(now)
        self._draining = "the engine is shutting down"
        for incoming in list(self.tickets.values()):
            self._call_off(incoming, self._draining)
        return self._end()

    @property
    def idle(self) -> bool:
        return not self.tickets and not len(self.state.dones)

    def figures(self) -> TransferStats:
        state = self.state
        waiting = sum(not incoming.complete and not incoming.over for incoming in self.tickets.values())
        return state.tally.figures(
            pinned=state.ledger.pinned, waiting=waiting, waits=state.admission.waits, peers=len(state.processes)
        )

    def lent(self) -> frozenset[str]:
        """None: a sender lends."""
        return frozenset()

    # Time

    def _due(self, key: object) -> None:
        match key:
            case ("room", str(ticket)):
                self._no_answer(self.tickets[ticket])
            case ("ttl", str(ticket)):
                self._forget(self.tickets[ticket])
            case ("progress", str(ticket)):
                self._stuck(self.tickets[ticket])
            case ("drain", str(ticket)):
                self.tickets[ticket].not_drained()
            case ("read", str(ticket), int()):
                self._slow(self.tickets[ticket])
            case ("bytes", int(token)):
                if (incoming := self.going.get(token)) is not None:
                    self._cut(incoming.process, incoming.copies[token].peer, "bytes did not come in time")
            case ("beat", bytes(incarnation)):
                self._heartbeat(incarnation)
            case ("done", bytes(incarnation), int(pull_id)):
                self._again(incarnation, pull_id)
            case ("connect", str(address)):
                self._connect_failed(address, "no connection in time")
            case ("reconnect", bytes(incarnation)):
                process = self.state.processes.get(incarnation)
                if process is not None and (self._with(process) or self.state.dones.waits_for(incarnation)):
                    self._ensure_done(process)

    def _no_answer(self, incoming: ReceiveSession) -> None:
        """There was no room in time, or the scheduler was silent; should it still answer, its blocks go back."""
        self._reply(incoming, self._full(incoming, self.state.admission.free, "no room in time"))
        if incoming.stage == "queued":
            return self._remove(incoming)
        return incoming.lose("no room in time", hard=True, code="room")

    def _stuck(self, incoming: ReceiveSession) -> None:
        if not incoming.complete:
            incoming.lose("the sender announced nothing for too long", hard=False, code="progress")
            incoming.settle()
            self._look(incoming)

    def _slow(self, incoming: ReceiveSession) -> None:
        incoming.lose("what was asked for did not come in time", hard=True, code="slow")
        incoming.settle()
        self._look(incoming)

    def _heartbeat(self, incarnation: bytes) -> None:
        process = self.state.processes.get(incarnation)
        if process is None:
            return
        reading = [incoming for incoming in self._with(process) if incoming.kept]
        process.beating = bool(reading)
        if not reading:
            return
        now, state = self.state.now, self.state
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
        state = self.state
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
        self.state.now, self.state.actions = now, []

    def _end(self) -> list[Action]:
        return self.state.actions
