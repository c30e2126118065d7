"""The sending machine: admits hand-overs, offers them, and answers receivers. Without I/O and without a clock; see
`machine`.

A hand-over waits for a connection and for room (bounded, fair over receivers), is offered, and with the receiver's
answer goes to the scheduler, which computes. From then on it is an `SendSession`. Every wait has a deadline.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import islice

from homenode.transfer.scheduler_events import Abandoned, Computed, Released, Returned, SendWanted, ToAgent
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
from homenode.transfer.state.receiver_peers import ReceiverPeers
from homenode.transfer.state.send_session import SendSession
from homenode.transfer.state.stats import TransferStats


class SenderMachine(ReceiverPeers):
    """Hands KV over to any number of receivers."""

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
                if (outgoing := self.going.pop(token, None)) is not None:
                    outgoing.copied(token, digests, reason)
                    self._look(outgoing)
            case Sent(token, ok):
                if (outgoing := self.going.pop(token, None)) is not None:
                    outgoing.sent(token, ok)
                    self._look(outgoing)
        return self._end()

    def foresee(self, input: Input, now: float) -> Foreseen | None:
        """Pages that were computed."""
        if type(input) is not FromEngine or type(input.message) is not Computed:
            return None
        outgoing = self.tickets.get(input.message.ticket)
        return outgoing.foresee(input.message) if outgoing is not None and outgoing.admitted else None

    def announcing(self, most: int, but: Container[str] = ()) -> list[Announcing]:
        """What can be announced as soon as it is computed."""
        found = (
            outgoing.announcing()
            for outgoing in self.tickets.values()
            if outgoing.admitted and outgoing.ticket not in but
        )
        return list(islice((one for one in found if one is not None), most))

    def expecting(self, most: int, but: Container[str] = ()) -> list[Expecting]:
        """A sender is told of no pages."""
        return []

    def tick(self, now: float) -> list[Action]:
        """Whatever is due by now."""
        self._begin(now)
        while (key := self.state.deadlines.due(now)) is not None:
            self._due(key)
        return self._end()

    def next_deadline(self) -> float | None:
        return self.state.deadlines.next()

    def drain(self, now: float) -> list[Action]:
        """No new hand-overs; those whose pages are all announced may still be read. `idle` once nothing is left.

        Nothing more is waited for from the scheduler, which may have ended: what it has not computed by now will not
        be."""
        self._begin(now)
        self._draining = "the engine is shutting down"
        for ticket in sorted(self._empty):
            self._return_empty(ticket)
        for outgoing in list(self.tickets.values()):
            if not outgoing.admitted:
                self._refuse(outgoing, "draining", self._draining)
                continue
            outgoing.computing = False
            if outgoing.told < outgoing.pages:
                outgoing.call_off("draining", self._draining)
            outgoing.pump()
            self._look(outgoing)
        return self._end()

    @property
    def idle(self) -> bool:
        return not self.tickets and not self.pulls

    def figures(self) -> TransferStats:
        state = self.state
        return state.tally.figures(
            pinned=state.ledger.pinned,
            waiting=state.admission.waiting,
            waits=state.admission.waits,
            peers=len(state.processes),
        )

    def lent(self) -> frozenset[str]:
        """Tickets whose pages others may be reading where they are: they stay as they are even if this machine is no
        more."""
        return frozenset(outgoing.ticket for outgoing in self.pulls.values() if outgoing.lent)

    # The scheduler

    def _from_engine(self, message: ToAgent) -> None:
        match message:
            case SendWanted():
                self._wanted(message)
            case Computed(ticket, first, blocks, last):
                if ticket in self._empty and last:
                    self._return_empty(ticket)
                elif (outgoing := self.tickets.get(ticket)) is not None and outgoing.admitted:
                    outgoing.add(first, blocks, last)
                    self._look(outgoing)
            case Released(ticket) if ticket not in self.tickets and ticket not in self._empty:
                self._released.add(ticket)
            case Released(ticket, reason) if ticket not in self._empty:
                self._given_up(self.tickets[ticket], reason)
            case Abandoned(ticket, reason) | Released(ticket, reason):
                if ticket in self._empty:
                    self._return_empty(ticket)
                elif (outgoing := self.tickets.get(ticket)) is not None:
                    self._abandoned(outgoing, reason)

    def _abandoned(self, outgoing: SendSession, reason: str) -> None:
        if not outgoing.admitted:
            self._drop(outgoing, reason)
            self.state.tell(Returned(self.state.now, outgoing.ticket))
            return self._admit()
        outgoing.computing = False
        if outgoing.told < outgoing.pages:
            outgoing.call_off("abandoned", reason)
        outgoing.pump()
        self._look(outgoing)
        return None

    def _given_up(self, outgoing: SendSession, reason: str) -> None:
        """Nobody will ask for it at the receiver. What the scheduler still computes of it is not told."""
        if not outgoing.admitted:
            return self._refuse(outgoing, "released", f"the ticket was given up: {reason}")
        outgoing.call_off("released", f"the ticket was given up: {reason}")
        outgoing.pump()
        return self._look(outgoing)

    def _return_empty(self, ticket: str) -> None:
        self._empty.discard(ticket)
        self.state.tell(Returned(self.state.now, ticket))

    # Time

    def _due(self, key: object) -> None:
        match key:
            case ("room", str(ticket)):
                self._waited(self.tickets[ticket])
            case ("reply", str(ticket)):
                self._unanswered(self.tickets[ticket], "the receiver did not answer the offer")
            case ("connect", str(address)):
                self._connect_failed(address, "no connection in time")
            case ("lease", int(pull_id)):
                self._expired(pull_id)
            case ("send", int(token)):
                self._stuck(token)
            case ("tidy", str(address)):
                self._tidy(address)

    def _waited(self, outgoing: SendSession) -> None:
        """A hand-over that has not begun has waited as long as it may."""
        waited = f"within {outgoing.patience:.3g} s, by what computing its prompt takes (--pd-room-wait)"
        if outgoing.process is not None:
            late = f"within {outgoing.patience + self._limits.answer:.3g} s"
            return self._unanswered(outgoing, f"the receiver did not answer whether it has room {late}")
        if not self._receivers[outgoing.address].connected:
            return self._refuse(outgoing, "connect", f"{outgoing.address}: no connection {waited}")
        self._full_until = self.state.now + self._breaker_ttl
        reason = f"the transfer buffer was full: nothing became free {waited}"
        return self._refuse(outgoing, "no room", reason, self._limits.backoff)

    def _unanswered(self, outgoing: SendSession, reason: str) -> None:
        """An offer that nobody answered in time: others are spared the wait for a while."""
        breaker = self._receivers[outgoing.address].breaker
        breaker.failed(self.state.now)
        self.state.tally.breaker_opens += breaker.open
        self._refuse(outgoing, "no answer", reason, self._breaker_ttl)
        for ticket in self.state.admission.waits_for(outgoing.address) if breaker.open else ():
            self._refuse(self.tickets[ticket], "breaker", "the receiver has no room", breaker.left(self.state.now))

    def _expired(self, pull_id: int) -> None:
        self.state.leases.end(pull_id)
        outgoing = self.pulls[pull_id]
        if not (self.state.push and outgoing.over) and not outgoing.retired:
            self.state.tally.expired += 1
        if outgoing.lent:
            outgoing.retired = True
            self.state.leases.grant(pull_id, self.state.now)
            return
        outgoing.expire()
        self._look(outgoing)

    def _stuck(self, token: int) -> None:
        """The receiver takes no bytes: its connections end, and with them what is being sent."""
        outgoing = self.going.get(token)
        if outgoing is not None and outgoing.process is not None:
            self._cut(outgoing.process, "bytes were not taken in time")

    # Around each step

    def _begin(self, now: float) -> None:
        self.state.now, self.state.actions = now, []

    def _end(self) -> list[Action]:
        return self.state.actions
