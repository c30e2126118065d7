"""The two machines: the sending one admits transfers, offers them, and answers receivers; the receiving one takes
offers, finds room, reads and verifies, and tells senders when they may forget. Without I/O and without a clock; see
`machine`.

A transfer waits for a connection and for room (bounded, fair over receivers), is offered, and with the receiver's
answer goes to the scheduler, which computes. What it goes through is in `send_session` and `receive_session`, what a
scheduler says of transfers in `sender_sessions` and `receiver_sessions`, what the other side says in `receiver_peers`
and `sender_peers`. Every wait has a deadline."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from itertools import islice

from homenode.transfer.scheduler_events import Computed, TransferStats, Unused
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.state.context import ReceiverContext, SenderContext
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
    Limits,
    Own,
    PeerLost,
    Sent,
)
from homenode.transfer.state.prediction import announce_next, expect, foresee_computed, foresee_ready, foresee_unused
from homenode.transfer.state.receiver_peers import ReceiverPeers
from homenode.transfer.state.receiver_sessions import ReceiverSessions
from homenode.transfer.state.sender_peers import SenderPeers
from homenode.transfer.state.sender_sessions import SenderSessions
from homenode.transfer.wire.message import Ready


class SenderMachine:
    """Hands KV over to any number of receivers."""

    def __init__(self, own: Own, settings: TransferConfig, limits: Limits | None = None) -> None:
        self.ctx = SenderContext(own, settings, limits or Limits())
        self.sessions = SenderSessions(self.ctx, settings)
        self.peers = ReceiverPeers(self.ctx, self.sessions)
        self.sessions.on_removed = self.peers.reap
        self._by_deadline: Mapping[str, Callable[..., None]] = {
            "room": lambda ticket: self.sessions.expire_wait(self.sessions.tickets[ticket]),
            "reply": lambda ticket: self.sessions.expire_offer(self.sessions.tickets[ticket]),
            "connect": lambda address: self.peers.connect_failed(address, "no connection in time"),
            "lease": self._on_lease_end,
            "send": self._on_slow_bytes,
            "tidy": self.sessions.tidy,
        }

    # What the agent calls

    def handle(self, input: Input, now: float) -> list[Action]:
        """Take an input. Never raises for what another process says."""
        self.ctx.begin(now)
        match input:
            case FromEngine(message):
                self.sessions.take(message)
            case FromPeer(peer, message):
                self.peers.take(peer, message)
            case Connected():
                self.peers.connected(input)
            case ConnectFailed(address, reason):
                self.peers.connect_failed(address, reason)
            case PeerLost(peer, reason, dead):
                self.peers.lost(peer, reason, dead)
            case Copied(token, digests, reason):
                if (session := self.sessions.going.pop(token, None)) is not None:
                    session.copied(token, digests, reason)
                    self.sessions.look(session)
            case Sent(token, ok):
                if (session := self.sessions.going.pop(token, None)) is not None:
                    session.sent(token, ok)
                    self.sessions.look(session)
        return self.ctx.actions

    def foresee(self, input: Input, now: float) -> Foreseen | None:
        """Foresee the answer to pages that were computed."""
        if type(input) is not FromEngine or type(input.message) is not Computed:
            return None
        session = self.sessions.tickets.get(input.message.ticket)
        return foresee_computed(session, input.message) if session is not None and session.is_admitted else None

    def announcing(self, most: int, but: Container[str] = ()) -> list[Announcing]:
        """Pages that can be announced as soon as they are computed."""
        sessions = self.sessions.tickets.values()
        found = (announce_next(each) for each in sessions if each.is_admitted and each.ticket not in but)
        return list(islice((one for one in found if one is not None), most))

    def expecting(self, most: int, but: Container[str] = ()) -> list[Expecting]:
        """None: pages are announced to receivers only."""
        return []

    def tick(self, now: float) -> list[Action]:
        """Do whatever is due by now."""
        self.ctx.begin(now)
        while (key := self.ctx.deadlines.due(now)) is not None:
            assert isinstance(key, tuple)
            name, *about = key
            self._by_deadline[name](*about)
        return self.ctx.actions

    def next_deadline(self) -> float | None:
        return self.ctx.deadlines.next()

    def drain(self, now: float) -> list[Action]:
        """Take no new transfers; those whose pages are all announced may still be read. `idle` once nothing is left.

        Nothing more is waited for from the scheduler, which may have ended: what it has not computed by now will not
        be."""
        self.ctx.begin(now)
        self.sessions.drain("the engine is shutting down")
        return self.ctx.actions

    @property
    def idle(self) -> bool:
        return not self.sessions.tickets and not self.sessions.pulls

    def figures(self) -> TransferStats:
        ctx, quota = self.ctx, self.ctx.admission
        return ctx.counter.figures(
            pinned=ctx.ledger.pinned, waiting=quota.waiting, waits=quota.waits, peers=len(ctx.processes)
        )

    def lent(self) -> frozenset[str]:
        """Tickets whose pages others may be reading where they are: they stay as they are even if this machine is no
        more."""
        return frozenset(session.ticket for session in self.sessions.pulls.values() if session.is_lent)

    # Time

    def _on_lease_end(self, pull_id: int) -> None:
        ctx, session = self.ctx, self.sessions.pulls[pull_id]
        ctx.leases.end(pull_id)
        if not (ctx.push and session.end_reason) and not session.retired:
            ctx.counter.expired += 1
        if session.is_lent:
            session.retired = True
            ctx.leases.grant(pull_id, ctx.now)
            return
        session.expire()
        self.sessions.look(session)

    def _on_slow_bytes(self, token: int) -> None:
        """End the connections of a receiver that takes no bytes, and with them what is being sent."""
        session = self.sessions.going.get(token)
        if session is not None and session.process is not None:
            self.peers.cut(session.process, "bytes were not taken in time")


class ReceiverMachine:
    """Takes KV from any number of senders."""

    def __init__(self, own: Own, settings: TransferConfig, limits: Limits | None = None) -> None:
        self.ctx = ReceiverContext(own, settings, limits or Limits())
        self.sessions = ReceiverSessions(self.ctx, settings.pd_alloc_fail_backoff_ttl)
        self.peers = SenderPeers(self.ctx, self.sessions)
        self.sessions.on_removed = self.peers.reap
        self._by_deadline: Mapping[str, Callable[..., None]] = {
            "room": lambda ticket: self.sessions.expire(self.sessions.tickets[ticket]),
            "ttl": lambda ticket: self.sessions.forget(self.sessions.tickets[ticket]),
            "progress": self._on_no_progress,
            "drain": lambda ticket: self.sessions.tickets[ticket].quarantine(),
            "read": self._on_slow_read,
            "bytes": self._on_slow_bytes,
            "beat": self.peers.beat,
            "done": self.peers.repeat_done,
            "connect": lambda address: self.peers.connect_failed(address, "no connection in time"),
            "reconnect": self._on_reconnect,
        }

    # What the agent calls

    def handle(self, input: Input, now: float) -> list[Action]:
        """Take an input. Never raises for what another process says."""
        self.ctx.begin(now)
        match input:
            case FromEngine(message):
                self.sessions.take(message)
            case FromPeer(peer, message):
                self.peers.take(peer, message)
            case Connected():
                self.peers.connected(input)
            case ConnectFailed(address, reason):
                self.peers.connect_failed(address, reason)
            case PeerLost(peer, reason, dead):
                self.peers.lost(peer, reason, dead)
            case Copied(token, digests):
                if (session := self.sessions.going.pop(token, None)) is not None:
                    session.copied(token, digests)
                    self.sessions.look(session)
            case Sent():
                pass
        return self.ctx.actions

    def foresee(self, input: Input, now: float) -> Foreseen | None:
        """Foresee the answer to pages that were announced, and to pages that nobody reads any more."""
        if type(input) is FromPeer and type(input.message) is Ready:
            process = self.ctx.processes.of(input.peer)
            if process is None or input.peer not in process.live or process.banned:
                return None
            session = self.sessions.pulls.get((process.incarnation, input.message.pull_id))
            return foresee_ready(session, input.message, now) if session is not None else None
        if type(input) is FromEngine and type(input.message) is Unused:
            session = self.sessions.tickets.get(input.message.ticket)
            return foresee_unused(session) if session is not None else None
        return None

    def announcing(self, most: int, but: Container[str] = ()) -> list[Announcing]:
        """None: a receiver announces nothing."""
        return []

    def expecting(self, most: int, but: Container[str] = ()) -> list[Expecting]:
        """Pages that can be taken as soon as they are announced."""
        sessions = self.sessions.tickets.values()
        found = (expect(each) for each in sessions if not each.is_complete and each.ticket not in but)
        return list(islice((one for one in found if one is not None), most))

    def tick(self, now: float) -> list[Action]:
        """Do whatever is due by now."""
        self.ctx.begin(now)
        while (key := self.ctx.deadlines.due(now)) is not None:
            assert isinstance(key, tuple)
            name, *about = key
            self._by_deadline[name](*about)
        return self.ctx.actions

    def next_deadline(self) -> float | None:
        return self.ctx.deadlines.next()

    def drain(self, now: float) -> list[Action]:
        """Take no new offers, and call off what is not complete. `idle` once nothing is left."""
        self.ctx.begin(now)
        self.peers.draining = "the engine is shutting down"
        for session in list(self.sessions.tickets.values()):
            self.sessions.call_off(session, self.peers.draining)
        return self.ctx.actions

    @property
    def idle(self) -> bool:
        return not self.sessions.tickets and not len(self.ctx.dones)

    def figures(self) -> TransferStats:
        ctx = self.ctx
        waiting = sum(not each.is_complete and not each.end_reason for each in self.sessions.tickets.values())
        return ctx.counter.figures(
            pinned=ctx.ledger.pinned, waiting=waiting, waits=ctx.admission.waits, peers=len(ctx.processes)
        )

    def lent(self) -> frozenset[str]:
        """None: only a sender's pages are read by others."""
        return frozenset()

    # Time

    def _on_no_progress(self, ticket: str) -> None:
        session = self.sessions.tickets[ticket]
        if not session.is_complete:
            reason = "the sender announced nothing for too long"
            self.sessions.lose(session, reason, final=False, code="progress")

    def _on_slow_read(self, ticket: str, first: int) -> None:
        session = self.sessions.tickets[ticket]
        self.sessions.lose(session, "what was asked for did not come in time", final=True, code="slow")

    def _on_slow_bytes(self, token: int) -> None:
        if (session := self.sessions.going.get(token)) is not None:
            self.peers.cut(session.process, session.copies[token].peer, "bytes did not come in time")

    def _on_reconnect(self, incarnation: bytes) -> None:
        if (process := self.ctx.processes.get(incarnation)) is not None:
            self.peers.reconnect(process)
