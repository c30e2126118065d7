"""The agent thread of one engine: it joins a machine that decides with the connections, the copy thread and the scheduler."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from homenode.transfer.buffers import Buffers, InPlace
from homenode.transfer.carriers.carrier import Carrier, KvBackend, Listening, LocalBuffer
from homenode.transfer.copying import CopyThread
from homenode.transfer.feeding import Machine
from homenode.transfer.figures import TransferFigures
from homenode.transfer.greeting import Admission, Identity
from homenode.transfer.limbo import Tickets, answer_without_agent
from homenode.transfer.links import LinkLimits, Links
from homenode.transfer.machine import FromEngine, Own
from homenode.transfer.mailbox import Mailbox
from homenode.transfer.performing import Performer
from homenode.transfer.seam import Computed, ToAgent, ToScheduler, Unused
from homenode.transfer.staging import StagingMemory

_log = logging.getLogger(__name__)
_SWEEP_S = 1.0
_REPORT_S = 0.05
_WATCH_S = 200e-6  # for what follows, after anything happened, before the thread sleeps: to be woken takes about as long
_BOOKS_S = 1e-3  # before the books are kept of what was done at once: those who were told of it need the interpreter, and perhaps this CPU
_RELIEF_S = 1.0  # between looks whether the thread that leads does what there is to do
_AT_ONCE = (Computed, Unused)  # what another engine waits for: said on the scheduler's own thread, where that can be
_MOST_MAIL = 16  # rounds of it, before connections have their turn
_LONGEST_WAIT_S = 3600.0
_JOIN_S = 5.0


@dataclass(frozen=True)
class AgentStatistics:
    """What the agent itself counts; the machine's figures are in `TransferAgent.figures`."""

    connections: int
    frames_in: int
    frames_out: int
    bytes_copied: int
    copy_seconds: float
    refused: dict[str, int]  # connections and frames, by code
    failures: int  # of our own
    broken: str  # why the agent has ended, if it has


class TransferAgent:
    """`tell`, `figures`, `statistics` and `close` may be called from any thread."""

    def __init__(
        self,
        carrier: Carrier,
        identity: Identity,
        cache: LocalBuffer,
        pool: LocalBuffer | None,
        ports: Mapping[str, Sequence[int]],
        make_machine: Callable[[Own], Machine],
        *,
        backend: KvBackend,
        post: Callable[[ToScheduler], None],
        on_change: Callable[[], None] = lambda: None,
        limits: LinkLimits | None = None,
        admission: Admission | None = None,
        clock: Callable[[], float] = time.monotonic,
        in_place: InPlace | None = None,
    ) -> None:
        """Binds its sockets: `ports` by name ("alloc", "init", "done"; the sender's machine is told of "done"). UserError or HostError when one cannot be.

        `in_place`: peers' memory is offered to the engine's steps, and the machine told of it.
        `on_change` is called, at most every 50 ms, when `figures` has changed. `post` and `on_change` are called from the agent's thread.
        """
        push, sends = identity.mode == "push", identity.role == "sender"
        exported = ([pool or cache] if sends else []) if not push else ([] if sends else [cache])
        lanes = backend.lanes if carrier.passes_memory and not push else None
        buffers, given = tuple(one.buffer for one in exported), lanes is not None and not sends
        identity = replace(identity, buffers=buffers, carrier=carrier.identity(exported), lane=given)
        self._carrier, self._identity, self._post_event, self._on_change, self._clock = carrier, identity, post, on_change, clock
        self._local = [cache] if pool is None else [cache, pool]
        self._sends = sends
        self._written_by_peers = push and not sends and carrier.reaches_memory
        self._mailbox: Mailbox[ToAgent | _Closing] = Mailbox()
        self._working = threading.Lock()  # everything below is for who holds it
        self._tickets = Tickets()
        self._bound = _bind(carrier, ports)
        self.addresses = {name: [one.address for one in listening] for name, listening in self._bound.items()}
        self._copies = CopyThread(backend.copy, self._mailbox.wake)
        self._buffers = Buffers(self._local, carrier, in_place)
        done = self.addresses.get("done", [""])[0]
        self._machine = make_machine(Own(cache.buffer, pool.buffer if pool else None, identity.incarnation, done))
        self._performer = Performer(
            self._machine,
            self._buffers,
            self._copies,
            StagingMemory(backend),
            self._post,
            clock,
            takes_buffers=push == sends,
            writable=push,
        )
        self._feeder = self._performer.feeder
        limits, admission = limits or LinkLimits(), admission or Admission()
        self._links = Links(carrier, identity, exported, self._performer, writable=push, limits=limits, admission=admission, lanes=lanes)
        self._performer.join(self._links, self._post_event, lanes)
        self._figures = self._machine.figures()
        self._broken = ""
        self._ends: float | None = None
        self._started = False
        self._leader: int | None = None  # the thread that works while it waits, see `inbox.Worker`
        self._relief = threading.Event()
        self._sweep_at: float | None = None
        self._tick_at: float | None = None
        self._awake_until = 0.0
        self._reported_at = -_REPORT_S
        self._thread = threading.Thread(target=self._run, name="homenode-kv-transfer", daemon=True)

    # From other threads

    def start(self) -> None:
        """Take connections from now on."""
        for listening in self._bound.values():
            self._links.listen(listening)
        self._links.poller.watch(self._mailbox.fd, lambda _events, _now: self._mailbox.seen())
        self._copies.start()
        self._started = True
        self._thread.start()

    def tell(self, message: ToAgent) -> None:
        """Give the agent a message; never waits. What another engine waits for is done before this returns, if the agent is at rest."""
        if type(message) not in _AT_ONCE or not self._done_at_once(message):
            self._mailbox.leave(message)
            if threading.get_ident() != self._leader:  # else it looks by itself before it sleeps
                self._mailbox.wake()
        if self._broken:
            self._answer_mail()

    def _done_at_once(self, message: ToAgent) -> bool:
        """On the thread of who tells: to wake the agent's would take longer than the rest. The machine hears of it when that wakes."""
        if not self._working.acquire(blocking=False):
            return False
        try:
            at_rest = self._started and not self._mailbox.waiting and not self._broken
            if not at_rest:
                return False
            if type(message) is not Computed or not self._performer.announce(message):
                if not self._performer.answer_ahead(FromEngine(message)):
                    return False
                self._links.flush(self._clock())
        except Exception as error:
            self._fail(error)
        finally:
            self._working.release()
        if threading.get_ident() != self._leader:
            self._mailbox.wake()
        return True

    def figures(self) -> TransferFigures:
        """The machine's counters, at most 50 ms old, with what connections add to them."""
        return self._figures

    def statistics(self) -> AgentStatistics:
        """The agent's own."""
        links, performer = self._links, self._performer
        return AgentStatistics(
            connections=self._figures.peers,
            frames_in=links.frames_in,
            frames_out=links.frames_out,
            bytes_copied=performer.pages.bytes_copied,
            copy_seconds=performer.pages.copy_seconds,
            refused=dict(links.refused),
            failures=performer.feeder.failures,
            broken=self._broken,
        )

    def close(self, timeout_s: float) -> bool:
        """Call off what is under way, wait so long for it, then end everything. Whether it ended in order."""
        if not self._thread.is_alive():
            self._release()
            return not self._broken
        self._mailbox.put(_Closing(self._clock() + timeout_s))
        self._leader = None
        self._relief.set()
        self._thread.join(timeout_s + _JOIN_S)
        return not self._thread.is_alive() and not self._broken

    # For the thread that leads, see `inbox.Worker`

    def lead(self, epoll: select.epoll) -> None:
        """The caller's thread does the work from now on, and sleeps there."""
        with self._working:
            self._leader = threading.get_ident()
            epoll.register(self._links.poller.fileno(), select.EPOLLIN)
            self._links.hearing.wait_beside(epoll)
        self._mailbox.wake()

    def rest(self) -> float:
        """Seconds until something is due, negative: nothing is; 0: there is work now. To be followed by `roused`."""
        if not self._working.acquire(blocking=False):
            return 0.0
        try:
            if not self._started or self._broken:
                return -1.0
            if self._feeder.behind:
                return 0.0
            self._performer.prepare()
            return self._patience() if self._mailbox.may_sleep() else 0.0
        finally:
            self._working.release()

    def watch(self, epoll: int) -> bool | None:
        """Look for what probably comes, and at a descriptor of epoll: whether there is something. None: look yourself, until `watches_until`."""
        left = self._awake_until - time.monotonic()
        return self._links.hearing.watch(epoll, left) if left > 0 else False

    def watches_until(self) -> float:
        """Until then more will probably come."""
        return self._awake_until

    def hear(self) -> None:
        """What came over lanes."""
        if not self._working.acquire(blocking=False):
            return
        try:
            if self._started and not self._broken:
                self._links.hearing.one(self._clock())
        except Exception as error:
            self._fail(error)
        finally:
            self._working.release()

    def roused(self) -> None:
        """It sleeps no more."""
        self._mailbox.awake()

    def work(self) -> None:
        """Do what there is to do."""
        if not self._working.acquire(blocking=False):
            os.sched_yield()  # the agent's own thread is at it
            return
        try:
            if self._started and not self._broken:
                self._turn(self._links.poller.poll(0))
        except Exception as error:
            self._fail(error)
        finally:
            self._working.release()

    # The thread

    def _run(self) -> None:
        try:
            while True:
                with self._working:
                    if self._over() or self._broken:
                        break
                    patience = self._patience()
                self._wait(patience)
                with self._working:
                    if self._broken:
                        break
                    self._turn(self._links.poller.poll(0))
        except Exception as error:
            with self._working:
                self._fail(error)
        finally:
            with self._working:
                self._release()

    def _turn(self, events: list[tuple[int, int]]) -> None:
        links, mailbox, feeder = self._links, self._mailbox, self._feeder
        now = self._clock()
        busy, behind = bool(events) or mailbox.waiting, feeder.behind
        if busy:
            self._awake_until = now + _WATCH_S
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
            self._performer.prepare()  # the scheduler may have pages next, without coming by
        if busy and self._sweep_at is None:
            self._sweep_at = now + _SWEEP_S

    def _wait(self, patience: float) -> None:
        """Until connections have something, or there is mail, or something is due.

        After anything happened the thread looks for a moment for what probably follows, and lets others run meanwhile.
        """
        if self._leader is not None:
            self._relief.wait(_RELIEF_S)
            return
        links, mailbox, clock = self._links, self._mailbox, self._clock
        behind = self._feeder.behind
        while not behind:
            if links.poller.poll(0) or mailbox.waiting:
                return
            if clock() >= self._awake_until:
                break
            os.sched_yield()
        try:
            if mailbox.may_sleep():
                links.poller.poll(_BOOKS_S if behind else patience)
        finally:
            mailbox.awake()

    def _take_mail(self, now: float) -> None:
        messages = self._mailbox.take()
        self._performer.pages.collect()
        for message in messages:
            if isinstance(message, _Closing):
                self._ends = message.until
                self._feeder.catch_up()  # else the machine would call off what was announced without it
                self._feeder.perform_all(self._machine.drain(now))
            else:
                self._tickets.told(message)
                self._feeder.feed(FromEngine(message))

    def _look_at_the_clock(self, now: float) -> None:
        self._feeder.catch_up()
        if self._tick_at is not None and self._tick_at <= now:
            self._feeder.perform_all(self._machine.tick(now))
        self._links.look_at_the_clock(now)
        if self._sweep_at is not None and self._sweep_at <= now:
            self._links.enforce_limits(now)
            self._buffers.retire(now)
            self._sweep_at = now + _SWEEP_S if self._links.unsettled or self._buffers.lingering else None
        if self._feeder.changed and now - self._reported_at >= _REPORT_S:
            self._feeder.changed = False
            self._reported_at = now
            self._report()

    def _patience(self) -> float:
        """Seconds until something is due."""
        self._tick_at = self._machine.next_deadline()
        due = [t for t in (self._tick_at, self._links.due, self._sweep_at, self._ends) if t is not None]
        if self._feeder.changed:
            due.append(self._reported_at + _REPORT_S)
        return min(max(0.0, min(due) - self._clock()), _LONGEST_WAIT_S) if due else -1

    def _report(self) -> None:
        figures = self._machine.figures()
        self._figures = msgspec.structs.replace(figures, bad_frames=dict(self._links.refused), peers=self._links.greeted)
        self._on_change()

    def _post(self, event: ToScheduler) -> None:
        self._tickets.tells(event)
        self._post_event(event)

    def _over(self) -> bool:
        """Whether closing was asked for and is done, or its time is over."""
        if self._ends is None:
            return False
        return (self._machine.idle and not self._links.sending) or self._ends <= self._clock()

    # Ends

    def _fail(self, error: Exception) -> None:
        _log.critical("KV transfer has failed and is off from here on; requests are computed without it", exc_info=error)
        self._break(f"KV transfer is off after an internal error: {error}")
        self._leader = None
        self._relief.set()

    def _break(self, reason: str) -> None:
        """End every ticket in hand. Readers of memory that was handed out notice by its epochs."""
        self._feeder.off = True
        self._links.close_all()
        self._copies.close(_JOIN_S)
        for buffer in self._local:
            words = buffer.words
            if words is not None:
                words.write(range(len(words)), [words.read(block) + 1 for block in range(len(words))])
        kept = self._machine.lent() | self._feeder.announced
        for event in self._tickets.endings(self._clock(), reason, written_by_others=self._written_by_peers, kept=kept):
            self._post_event(event)
        self._broken = reason
        self._answer_mail()

    def _answer_mail(self) -> None:
        for message in self._mailbox.take():
            if not isinstance(message, _Closing):
                event = answer_without_agent(message, self._clock(), self._broken)
                if event is not None:
                    self._post_event(event)

    def _release(self) -> None:
        """Close what is open."""
        self._started = False
        self._feeder.off = True
        self._links.close_all()
        for listening in self._bound.values():
            for one in listening:
                one.sock.close()
        if self._copies.close(_JOIN_S):
            self._buffers.close()
        self._mailbox.close()
        self._links.release()
        self._carrier.close()


@dataclass(frozen=True)
class _Closing:
    """Asks the thread to end by then."""

    until: float


def _bind(carrier: Carrier, ports: Mapping[str, Sequence[int]]) -> dict[str, list[Listening]]:
    """All sockets, or none."""
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
