"""The agent of one engine: the threads and the lock under which it works (`agent_loop.AgentLoop`), and what others
call."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from homenode.compute.kv_memory import KvLayout, KvMemory
from homenode.errors import UserError
from homenode.host.refusals import start_thread
from homenode.net.admission import HandshakeLimits
from homenode.net.settings import NetConfig
from homenode.transfer.agent.agent_loop import AgentLoop, Closing, bind
from homenode.transfer.agent.buffers import AT_ONCE_BYTES, InPlace, register
from homenode.transfer.carriers.carrier import Carrier, KvBackend, LocalBuffer
from homenode.transfer.carriers.sockets import ShmCarrier, TcpCarrier
from homenode.transfer.net.connection import Connection
from homenode.transfer.net.links import LinkLimits
from homenode.transfer.net.peer_watch import ExpectedAnnouncements
from homenode.transfer.scheduler_events import Computed, ToAgent, ToScheduler, TransferStats, Unused
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.state.machine import FromEngine, Limits, Machine, Own
from homenode.transfer.state.machines import ReceiverMachine, SenderMachine
from homenode.transfer.wire.greeting import Identity

_log = logging.getLogger(__name__)
# before the books are kept of what was done at once: those who were told of it need the interpreter, and perhaps this
# CPU
_BOOKS_S = 1e-3
_RELIEF_S = 1.0  # between looks whether the thread that leads does what there is to do
_AT_ONCE = (Computed, Unused)  # what another engine waits for: said on the scheduler's own thread, where that can be
_JOIN_S = 5.0


@dataclass(frozen=True)
class AgentStats:
    """Counters of the agent itself; the machine's are `TransferStats`."""

    connections: int
    frames_in: int
    frames_out: int
    bytes_copied: int
    bytes_digested: int  # read for their digests alone
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
        admission: HandshakeLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        in_place: InPlace | None = None,
    ) -> None:
        """Binds its sockets: `ports` by name ("alloc", "init", "done"; the sender's machine is told of "done").
        UserError or HostError when one cannot be.

        `in_place`: peers' memory is offered to the engine's steps, and the machine told of it. `on_change` is called,
        at most every 50 ms, when `figures` has changed. `post` and `on_change` are called from the agent's thread.
        """
        self._carrier, self._clock = carrier, clock
        self._bound = bind(carrier, ports)
        self.addresses = {name: [one.address for one in listening] for name, listening in self._bound.items()}
        self.working = threading.Lock()  # what there is to do is for who holds it
        self._turns = AgentLoop(
            carrier,
            identity,
            cache,
            pool,
            self.addresses,
            make_machine,
            backend=backend,
            post=post,
            on_change=on_change,
            limits=limits or LinkLimits(),
            admission=admission or HandshakeLimits(),
            clock=clock,
            in_place=in_place,
        )
        self._mailbox, self._links, self.machine = self._turns.mailbox, self._turns.links, self._turns.machine
        self._performer, self._feeder, self._local = self._turns.performer, self._turns.feeder, self._turns.local
        at_once = max(AT_ONCE_BYTES, cache.buffer.layout.block_bytes)
        self._promises = ExpectedAnnouncements(self._links.hearing, at_once, self._walk_through)
        self._started = False
        self._unheard = False  # the thread that leads came to hear when this one had the lock
        self._leader: int | None = None  # the thread that works while it waits, see `inbox.PollableAgent`
        self._relief = threading.Event()
        self._thread = threading.Thread(target=self._run, name="homenode-kv-transfer", daemon=True)

    # From other threads

    def start(self) -> None:
        """Take connections from now on."""
        self._turns.start(self._bound)
        self._started = True
        start_thread(self._thread)

    def tell(self, message: ToAgent) -> None:
        """Give the agent a message; never waits. What another engine waits for is done before this returns, if the
        agent is at rest."""
        if type(message) not in _AT_ONCE or not self._done_at_once(message):
            self._mailbox.leave(message)
            if threading.get_ident() != self._leader:  # else it looks by itself before it sleeps
                self._mailbox.wake()
        if self._turns.broken:
            self._turns.answer_mail()

    def promise(self, tickets: Sequence[str]) -> None:
        """Pages of these will be told of (`Computed`) in a moment, probably: who reads them could wake up meanwhile."""
        if self._started:
            self._performer.promise(tickets)

    def _done_at_once(self, message: ToAgent) -> bool:
        """On the thread of who tells: to wake the agent's would take longer than the rest. The machine hears of it when
        that wakes."""
        if not self.working.acquire(blocking=False):
            return False
        try:
            at_rest = self._started and not self._mailbox.waiting and not self._turns.broken
            if not at_rest:
                return False
            if type(message) is not Computed or not self._performer.announce(message):
                if not self._performer.answer_ahead(FromEngine(message)):
                    return False
                self._links.flush(self._clock())
        except Exception as error:
            self._fail(error)
        finally:
            self.working.release()
        if threading.get_ident() != self._leader:
            self._mailbox.wake()
        return True

    def figures(self) -> TransferStats:
        """The machine's counters, at most 50 ms old, with what connections add to them."""
        return self._turns.figures

    def statistics(self) -> AgentStats:
        """The agent's own."""
        links, performer = self._links, self._performer
        return AgentStats(
            connections=self._turns.figures.peers,
            frames_in=links.frames_in,
            frames_out=links.frames_out,
            bytes_copied=performer.pages.bytes_copied,
            bytes_digested=performer.pages.bytes_digested,
            copy_seconds=performer.pages.copy_seconds,
            refused=dict(links.refused),
            failures=performer.feeder.failures,
            broken=self._turns.broken,
        )

    def close(self, timeout_s: float) -> bool:
        """Call off what is under way, wait so long for it, then end everything. Whether it ended in order."""
        if not self._thread.is_alive():
            self._release()
            return not self._turns.broken
        self._mailbox.put(Closing(self._clock() + timeout_s))
        self._leader = None
        self._relief.set()
        self._thread.join(timeout_s + _JOIN_S)
        return not self._thread.is_alive() and not self._turns.broken

    # For the thread that leads, see `inbox.PollableAgent`

    def lead(self, epoll: select.epoll) -> None:
        """The caller's thread does the work from now on, and sleeps there."""
        with self.working:
            self._leader = threading.get_ident()
            epoll.register(self._links.poller.fileno(), select.EPOLLIN)
            self._links.hearing.wait_beside(epoll)
        self._mailbox.wake()

    def rest(self) -> float:
        """Seconds until something is due, negative: nothing is; 0: there is work now. To be followed by `roused`."""
        if not self.working.acquire(blocking=False):
            return 0.0
        try:
            if not self._started or self._turns.broken:
                return -1.0
            if self._feeder.behind or self._unheard:
                return 0.0
            self._performer.prepare()
            return self._turns.patience() if self._mailbox.may_sleep() else 0.0
        finally:
            self.working.release()

    def watch(self, epoll: int) -> bool | None:
        """Look for what was promised, or probably comes, and at a descriptor of epoll: whether there is something.
        None: look yourself, until `watches_until`."""
        return self._promises.watch(epoll, self._turns.awake_until)

    def watches_until(self) -> float:
        """The time until which more will probably come."""
        return self._turns.awake_until

    def rehearse(self) -> bool:
        """Tell whether something is promised over a lane by now: `watch` will look for it. What is to be done about it
        is walked through for nothing."""
        return self._promises.notice()

    def _walk_through(self, promised: Connection) -> None:
        if not self.working.acquire(blocking=False):
            return
        try:
            if self._started and not self._turns.broken:
                self._performer.rehearse(promised)
        except Exception as error:
            self._fail(error)
        finally:
            self.working.release()

    def hear(self) -> bool:
        """Take what came over lanes: whether there was something."""
        if not self.working.acquire(blocking=False):
            self._unheard = True  # and nobody rings for what was said while it was looked for
            return False
        self._unheard = False
        try:
            if not self._started or self._turns.broken or not self._links.hearing.one(self._clock()):
                return False
            self._promises.kept()
            return True
        except Exception as error:
            self._fail(error)
            return False
        finally:
            self.working.release()

    def roused(self) -> None:
        """Take note that it sleeps no more."""
        self._mailbox.awake()

    def work(self) -> None:
        """Do what there is to do."""
        if not self.working.acquire(blocking=False):
            os.sched_yield()  # the agent's own thread is at it
            return
        try:
            if self._started and not self._turns.broken:
                self._turns.turn(self._links.poller.poll(0))
        except Exception as error:
            self._fail(error)
        finally:
            self.working.release()

    # The thread

    def _run(self) -> None:
        try:
            while True:
                with self.working:
                    if self._turns.over() or self._turns.broken:
                        break
                    patience = self._turns.patience()
                self._wait(patience)
                with self.working:
                    if self._turns.broken:
                        break
                    self._turns.turn(self._links.poller.poll(0))
        except Exception as error:
            with self.working:
                self._fail(error)
        finally:
            with self.working:
                self._release()

    def _wait(self, patience: float) -> None:
        """Wait until connections have something, or there is mail, or something is due.

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
            if clock() >= self._turns.awake_until:
                break
            os.sched_yield()
        try:
            if mailbox.may_sleep():
                links.poller.poll(_BOOKS_S if behind else patience)
        finally:
            if self._leader is None:  # else it is asleep itself, perhaps
                mailbox.awake()

    # Ends

    def _fail(self, error: Exception) -> None:
        _log.critical(
            "KV transfer has failed and is off from here on; requests are computed without it", exc_info=error
        )
        self._turns.break_off(f"KV transfer is off after an internal error: {error}")
        self._leader = None
        self._relief.set()

    def _release(self) -> None:
        """Close what is open."""
        self._started = False
        self._turns.release()
        for listening in self._bound.values():
            for one in listening:
                one.sock.close()
        self._carrier.close()


Maker = Callable[[TransferConfig, NetConfig, KvLayout, KvBackend], Carrier]


def _shm(config: TransferConfig, net: NetConfig, own: KvLayout, backend: KvBackend) -> Carrier:
    return ShmCarrier(own, backend)


def _tcp(config: TransferConfig, net: NetConfig, own: KvLayout, backend: KvBackend) -> Carrier:
    return _tcp_carrier(config, net)


def _tcp_carrier(config: TransferConfig, net: NetConfig, past_tls: str = "") -> TcpCarrier:
    return TcpCarrier(config.pd_peer_host, config.pd_secret, config.pd_allowed_peers, net, past_tls)


def _nixl(config: TransferConfig, net: NetConfig, own: KvLayout, backend: KvBackend) -> Carrier:
    from homenode.transfer.carriers.nixl import NixlCarrier

    return NixlCarrier(_tcp_carrier(config, net, "NIXL"), own, backend)


def _hccl(config: TransferConfig, net: NetConfig, own: KvLayout, backend: KvBackend) -> Carrier:
    from homenode.transfer.carriers.hccl import HcclCarrier

    return HcclCarrier(_tcp_carrier(config, net, "HCCL"), own, backend, npu_of(config.pd_buffer_device))


def npu_of(device: str) -> int:
    """The NPU that `pd_buffer_device` names, the first one where it names none."""
    kind, _, number = device.partition(":")
    return int(number or 0) if kind == "npu" else 0


def channels() -> dict[str, Maker]:
    """Return what makes a carrier, by `transfer_channel`."""
    return {"shm": _shm, "tcp": _tcp, "nixl": _nixl, "hccl": _hccl}


def open_carrier(config: TransferConfig, own: KvLayout, backend: KvBackend, net: NetConfig | None = None) -> Carrier:
    """The carrier of `transfer_channel`. UserError for a name nobody knows, UnsupportedError for one that lacks
    something here."""
    known = channels()
    name = config.transfer_channel
    maker = known.get(name)
    if maker is not None:
        return maker(config, net or NetConfig(), own, backend)
    raise UserError(f"transfer_channel {name!r} is none of {', '.join(known)}", param="transfer_channel")


def open_agent(
    config: TransferConfig,
    fingerprint: dict[str, str],
    cache: KvMemory,
    pool: KvMemory | None,
    backend: KvBackend,
    post: Callable[[ToScheduler], None],
    *,
    on_change: Callable[[], None] = lambda: None,
    incarnation: bytes | None = None,
    limits: Limits | None = None,
    in_place: InPlace | None = None,
    net: NetConfig | None = None,
) -> TransferAgent:
    """An agent whose sockets are bound and published (`TransferAgent.addresses`: "alloc" and "init", or "done"), and
    that is not started yet.

    `cache` is the engine's KV cache, `pool` the CPU buffer of an offloading sender. UserError for settings that cannot
    be met, such as a port that is taken; HostError when the machine refuses.
    """
    role = config.pd_role
    if role is None:
        raise UserError("KV transfer is on, but pd_role is not set: choose sender or receiver.", param="pd_role")
    carrier = open_carrier(config, cache.layout, backend, net)
    identity = Identity(
        role=cast(Literal["sender", "receiver"], role),
        mode=config.mode,
        channel=carrier.name,
        fingerprint=fingerprint,
        incarnation=incarnation or os.urandom(16),
    )
    ports = (
        {"done": config.done_ports}
        if role == "sender"
        else {"alloc": config.pd_peer_alloc_port, "init": config.pd_peer_init_port}
    )

    def make_machine(own: Own) -> Machine:
        return SenderMachine(own, config, limits) if role == "sender" else ReceiverMachine(own, config, limits)

    return TransferAgent(
        carrier,
        identity,
        register(cache, backend),
        register(pool, backend) if pool is not None else None,
        ports,
        make_machine,
        backend=backend,
        post=post,
        on_change=on_change,
        in_place=in_place,
    )
