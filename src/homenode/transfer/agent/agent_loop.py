"""Turns of one engine's agent, one after another: mail from its scheduler, connections, copies, and what is due; the
tickets that are open, and deadlines after this process was stopped. For one thread at a time: whoever has the agent's
lock. A turn never waits."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec

from homenode.net.admission import HandshakeLimits
from homenode.net.mailbox import Mailbox
from homenode.transfer.agent.action_executor import ActionExecutor
from homenode.transfer.agent.buffers import Buffers, CopyThread, InPlace
from homenode.transfer.agent.page_io import StagingMemory
from homenode.transfer.carriers.carrier import Carrier, KvBackend, Listening, LocalBuffer
from homenode.transfer.net.links import LinkLimits, Links
from homenode.transfer.scheduler_events import (
    Abandoned,
    Claimed,
    Computed,
    Failed,
    Fetch,
    Forgotten,
    Offered,
    Quarantined,
    Released,
    ReservationFailed,
    Reserved,
    Returned,
    SendAdmitted,
    SendRefused,
    SendWanted,
    Stopped,
    ToAgent,
    ToScheduler,
    Unused,
)
from homenode.transfer.state.machine import FromEngine, Machine, Own
from homenode.transfer.wire.greeting import Identity

LATE_S = 0.25  # nobody who is awake, and has a CPU, comes so late to a deadline
GRACE_S = 0.5  # the others may have been stopped too, and go on no sooner than this process


class SuspendGuard:
    """Puts deadlines off, once for each time that they were missed by much. So each wait still ends in bounded time."""

    def __init__(self) -> None:
        self._until: float | None = None

    def not_before(self, due: float) -> float:
        """Return when to see to what is due then."""
        return due if self._until is None else max(due, self._until)

    def given(self, due: float | None, now: float) -> bool:
        """Tell whether what is due (None: nothing is) has to wait."""
        if due is None or now < due or (self._until is not None and now >= self._until):
            self._until = None  # what was missed has come after all, or has had its time
            return False
        if self._until is None and now - due > LATE_S:
            self._until = now + GRACE_S
        return self._until is not None


State = Literal["wanted", "admitted", "receiving"]


class Tickets:
    """Follows both directions of the seam. A ticket costs a dictionary entry while it is in hand."""

    def __init__(self) -> None:
        self._open: dict[str, State] = {}

    def __len__(self) -> int:
        return len(self._open)

    def told(self, message: ToAgent) -> None:
        """Take note of a message from the scheduler."""
        match message:
            case SendWanted(ticket):
                self._open[ticket] = "wanted"
            case ReservationFailed(ticket) | Claimed(ticket):
                self._open.pop(ticket, None)

    def tells(self, event: ToScheduler) -> None:
        """Take note of an event to the scheduler."""
        match event:
            case SendAdmitted(_, ticket):
                self._open[ticket] = "admitted"
            case Offered(_, ticket):
                self._open[ticket] = "receiving"
            case SendRefused(_, ticket) | Returned(_, ticket) | Forgotten(_, ticket):
                self._open.pop(ticket, None)

    def endings(
        self, now: float, reason: str, *, written_by_others: bool, kept: Container[str] = ()
    ) -> list[ToScheduler]:
        """Return what ends every ticket in hand. `written_by_others`: processes that are not known to be dead can write
        to blocks (push into shared memory). `kept`: sent ones that others read in place, whose blocks never come
        back."""
        events: list[ToScheduler] = []
        for ticket, state in self._open.items():
            match state:
                case "wanted":
                    events.append(SendRefused(now, ticket, reason))
                case "admitted" if ticket not in kept:
                    events.append(Returned(now, ticket))
                case "receiving":
                    events.append(Quarantined(now, ticket, 0, reason) if written_by_others else Forgotten(now, ticket))
        self._open.clear()
        return events


def answer_without_agent(message: ToAgent, now: float, reason: str) -> ToScheduler | None:
    """Return what the scheduler is answered when there is no agent any more; its tickets have all been ended before."""
    match message:
        case SendWanted(ticket):
            return SendRefused(now, ticket, reason)
        case Fetch(ticket) | Stopped(ticket):
            return Failed(now, ticket, reason)
        case Reserved(ticket):
            return Forgotten(now, ticket)
        case Computed() | Abandoned() | ReservationFailed() | Claimed() | Released() | Unused():
            return None
    return None


_SWEEP_S = 1.0
_REPORT_S = 0.05
_WATCH_S = (
    200e-6  # for what follows, after anything happened, before the thread sleeps: to be woken takes about as long
)
_MOST_MAIL = 16  # rounds of it, before connections have their turn
_LONGEST_WAIT_S = 3600.0
_JOIN_S = 5.0


@dataclass(frozen=True)
class Closing:
    """Mail that asks for an end by then."""

    until: float


class AgentLoop:
    """Turns of the agent's work. For one thread at a time."""

    def __init__(
        self,
        carrier: Carrier,
        identity: Identity,
        cache: LocalBuffer,
        pool: LocalBuffer | None,
        addresses: Mapping[str, Sequence[str]],
        make_machine: Callable[[Own], Machine],
        *,
        backend: KvBackend,
        post: Callable[[ToScheduler], None],
        on_change: Callable[[], None],
        limits: LinkLimits,
        admission: HandshakeLimits,
        clock: Callable[[], float],
        in_place: InPlace | None,
    ) -> None:
        """Arguments are those of `agent.TransferAgent`; what binds sockets has bound them to `addresses`."""
        push, sends = identity.mode == "push", identity.role == "sender"
        exported = ([pool or cache] if sends else []) if not push else ([] if sends else [cache])
        lanes = backend.lanes if carrier.passes_memory and not push else None
        buffers, given = tuple(one.buffer for one in exported), lanes is not None and not sends
        identity = replace(identity, buffers=buffers, carrier=carrier.identity(exported), lane=given)
        self.local = [cache] if pool is None else [cache, pool]
        self.awake_until = 0.0  # more will probably come until then
        self.broken = ""
        self._post_event, self._on_change, self._clock, self._sends = post, on_change, clock, sends
        self._written_by_peers = push and not sends and carrier.reaches_memory
        self.mailbox: Mailbox[ToAgent | Closing] = Mailbox()
        self._tickets = Tickets()
        self.copies = CopyThread(backend.copy, self.mailbox.wake)
        self._buffers = Buffers(self.local, carrier, in_place)
        done = addresses.get("done", [""])[0]
        self.machine = make_machine(Own(cache.buffer, pool.buffer if pool else None, identity.incarnation, done))
        staging = StagingMemory(backend)
        self.performer = ActionExecutor(
            self.machine,
            self._buffers,
            self.copies,
            staging,
            self._post,
            clock,
            takes_buffers=push == sends,
            writable=push,
        )
        self.feeder = self.performer.feeder
        self.links = Links(
            carrier, identity, exported, self.performer, writable=push, limits=limits, admission=admission, lanes=lanes
        )
        self.performer.join(self.links, post, lanes)
        self.figures = self.machine.figures()
        self._ends: float | None = None
        self._sweep_at: float | None = None
        self._tick_at: float | None = None
        self._grace = SuspendGuard()
        self._reported_at = -_REPORT_S

    def start(self, listening: Mapping[str, Sequence[Listening]]) -> None:
        """Take connections, and mail, from now on."""
        for each in listening.values():
            self.links.listen(each)
        self.links.poller.watch(self.mailbox.fd, lambda _events, _now: self.mailbox.seen())
        self.copies.start()

    def turn(self, events: list[tuple[int, int]]) -> None:
        """Do what there is to do; `events`: what the poller told."""
        links, mailbox, feeder = self.links, self.mailbox, self.feeder
        now = self._clock()
        busy, behind = bool(events) or mailbox.waiting, feeder.behind
        if busy:
            self.awake_until = now + _WATCH_S
        for fd, mask in events:
            links.poller.handle(fd, mask, now)
        links.flush(now)  # the other side waits for it, perhaps; mail may take a while
        if feeder.behind and not behind:
            return  # somebody was told something a moment ago: the books are kept when he has seen to it
        for _ in range(_MOST_MAIL):
            if not mailbox.waiting:
                break
            self._take_mail(now)
        self._look_at_the_clock(now)  # and catches up
        links.flush(now)
        if self._sends:
            self.performer.prepare()  # the scheduler may have pages next, without coming by
        if busy and self._sweep_at is None:
            self._sweep_at = now + _SWEEP_S

    def _take_mail(self, now: float) -> None:
        messages = self.mailbox.take()
        self.performer.pages.collect()
        for message in messages:
            if isinstance(message, Closing):
                self._ends = message.until
                self.feeder.catch_up()  # else the machine would call off what was announced without it
                self.feeder.perform_all(self.machine.drain(now))
            else:
                self._tickets.told(message)
                self.feeder.feed(FromEngine(message))

    def _look_at_the_clock(self, now: float) -> None:
        self.feeder.catch_up()
        self.links.look_at_the_clock(now)
        if not self._grace.given(min((t for t in (self._tick_at, self._sweep_at) if t is not None), default=None), now):
            self._see_to_deadlines(now)
        if self.feeder.changed and now - self._reported_at >= _REPORT_S:
            self.feeder.changed = False
            self._reported_at = now
            self._report()

    def _see_to_deadlines(self, now: float) -> None:
        if self._tick_at is not None and self._tick_at <= now:
            self._tick_at = None
            self.feeder.perform_all(self.machine.tick(now))
        if self._sweep_at is not None and self._sweep_at <= now:
            self.links.enforce_limits(now)
            self._buffers.retire(now)
            self._sweep_at = now + _SWEEP_S if self.links.unsettled or self._buffers.lingering else None

    def patience(self) -> float:
        """Seconds until something is due."""
        self._tick_at = self.machine.next_deadline()
        due = [self._grace.not_before(t) for t in (self._tick_at, self._sweep_at) if t is not None]
        due += [t for t in (self.links.due, self._ends) if t is not None]
        if self.feeder.changed:
            due.append(self._reported_at + _REPORT_S)
        return min(max(0.0, min(due) - self._clock()), _LONGEST_WAIT_S) if due else -1

    def _report(self) -> None:
        figures = self.machine.figures()
        self.figures = msgspec.structs.replace(figures, bad_frames=dict(self.links.refused), peers=self.links.greeted)
        self._on_change()

    def _post(self, event: ToScheduler) -> None:
        self._tickets.tells(event)
        self._post_event(event)

    def over(self) -> bool:
        """Tell whether closing was asked for and is done, or its time is over."""
        if self._ends is None:
            return False
        return (self.machine.idle and not self.links.sending) or self._ends <= self._clock()

    # Ends

    def break_off(self, reason: str) -> None:
        """End every ticket in hand. Readers of memory that was handed out notice by its epochs."""
        self.feeder.off = True
        self.links.close_all()
        self.copies.close(_JOIN_S)
        for buffer in self.local:
            words = buffer.words
            if words is not None:
                words.write(range(len(words)), [words.read(block) + 1 for block in range(len(words))])
        kept = self.machine.lent() | self.feeder.announced
        for event in self._tickets.endings(self._clock(), reason, written_by_others=self._written_by_peers, kept=kept):
            self._post_event(event)
        self.broken = reason
        self.answer_mail()

    def answer_mail(self) -> None:
        """Answer what comes when it is broken."""
        for message in self.mailbox.take():
            if not isinstance(message, Closing):
                event = answer_without_agent(message, self._clock(), self.broken)
                if event is not None:
                    self._post_event(event)

    def release(self) -> None:
        """Close what is open."""
        self.feeder.off = True
        self.links.close_all()
        if self.copies.close(_JOIN_S):
            self._buffers.close()
        self.mailbox.close()
        self.links.release()


def bind(carrier: Carrier, ports: Mapping[str, Sequence[int]]) -> dict[str, list[Listening]]:
    """All sockets of an agent, or none. UserError or HostError when one cannot be had."""
    bound: dict[str, list[Listening]] = {}
    try:
        for name, numbers in ports.items():
            bound[name] = carrier.listen(numbers)
    except BaseException:
        for listening in bound.values():
            for one in listening:
                one.sock.close()
        raise
    return bound
