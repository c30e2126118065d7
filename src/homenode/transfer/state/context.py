"""The things that the parts of a machine share: the engine's facts, who keeps which pages, deadlines, other processes,
and the actions of the step at hand. One for each side."""

from __future__ import annotations

import math

from homenode.transfer.scheduler_events import StatsCounter, ToScheduler
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.state.deadlines import DeadlineHeap, DoneQueue, Leases, RecentEnds
from homenode.transfer.state.ledger import Ledger
from homenode.transfer.state.machine import Action, Close, Epochs, Limits, Own, Send, Tell
from homenode.transfer.state.pages import chunk_pages
from homenode.transfer.state.peers import PageQuota, PeerProcess, Processes
from homenode.transfer.wire.message import Done, Message


class ReceiverContext:
    """Things that sessions and peers of a `machines.ReceiverMachine` share. `now` and `actions` are of the input being
    handled."""

    def __init__(self, own: Own, settings: TransferConfig, limits: Limits) -> None:
        self.own = own
        self.limits = limits
        self.push = not settings.pd_pull_mode
        self.delay = settings.pd_pull_mode and settings.pd_delay_pull
        self.shared = settings.one_sided if limits.shared is None else limits.shared
        # Only memory that is mapped can be read where it is.
        self.in_place = self.shared and settings.transfer_channel == "shm" and not self.push and settings.pd_in_place
        self.layout = own.cache.layout
        self.digest_bytes = 8 * self.layout.kv_heads
        self.ledger = Ledger(self.layout.blocks)
        self.admission = PageQuota(min(settings.pd_buffer_size // self.layout.block_bytes, self.layout.blocks))
        self.deadlines = DeadlineHeap()
        self.dones = DoneQueue(limits, self.deadlines)
        self.processes = Processes(limits)
        self.counter = StatsCounter()
        self.ttl = settings.pd_pull_pending_ttl
        self.now = 0.0
        self.actions: list[Action] = []
        self._tokens = 0

    def begin(self, now: float) -> None:
        """Begin a step."""
        self.now, self.actions = now, []

    def token(self) -> int:
        self._tokens += 1
        return self._tokens

    def act(self, action: Action) -> None:
        self.actions.append(action)

    def tell(self, event: ToScheduler) -> None:
        self.act(Tell(event))

    def send(self, peer: int | None, message: Message) -> None:
        """Send a frame, to nobody if the connection has ended meanwhile: what follows of that is seen to where it is
        lost."""
        if peer is not None:
            self.act(Send(peer, message))

    def say_done(self, process: PeerProcess, pull_id: int, ok: bool, lease: float) -> None:
        """Tell the sender that its pages are not read any more. Said again until acknowledged, or until the `lease` has
        ended in any case."""
        if process.dead or (process.banned and lease < math.inf):
            return
        done = Done(pull_id, ok)
        self.dones.say(process.incarnation, done, self.now, lease)
        self.send(process.by_made, done)


class SenderContext:
    """Things that sessions and peers of a `machines.SenderMachine` share. `now` and `actions` are of the input being
    handled."""

    def __init__(self, own: Own, settings: TransferConfig, limits: Limits) -> None:
        self.own = own
        self.limits = limits
        self.push = not settings.pd_pull_mode
        self.shared = settings.one_sided if limits.shared is None else limits.shared
        self.pool = own.pool if settings.pd_use_cpu_offload and settings.pd_pull_mode else None
        self.layout = own.cache.layout
        self.page_tokens = self.layout.block_size
        self.chunk = chunk_pages(self.layout, self.page_tokens, limits.chunk)
        self.most = self.chunk if self.shared else chunk_pages(self.layout, self.page_tokens, limits.read)
        pinned = self.pool.layout if self.pool is not None else self.layout
        size = (
            settings.pd_cpu_buffer_size or settings.pd_buffer_size if self.pool is not None else settings.pd_buffer_size
        )
        self.ledger = Ledger(pinned.blocks)
        self.admission = PageQuota(
            min(size // pinned.block_bytes, pinned.blocks), settings.pd_pull_backpressure_reserve_pct
        )
        self.deadlines = DeadlineHeap()
        self.leases = Leases(
            min(settings.pd_pull_pending_ttl, 1e6), max(limits.longest, settings.pd_pull_pending_ttl), self.deadlines
        )
        self.ended = RecentEnds(limits.remembered)
        self.processes = Processes(limits)
        self.counter = StatsCounter()
        self.now = 0.0
        self.actions: list[Action] = []
        self._tokens = 0

    @property
    def buffer(self) -> bytes:
        """The buffer of the pages that are pinned."""
        return self.pool.id if self.pool is not None else self.own.cache.id

    def begin(self, now: float) -> None:
        """Begin a step."""
        self.now, self.actions = now, []

    def token(self) -> int:
        self._tokens += 1
        return self._tokens

    def act(self, action: Action) -> None:
        self.actions.append(action)

    def tell(self, event: ToScheduler) -> None:
        self.act(Tell(event))

    def send(self, peer: int | None, message: Message) -> None:
        """Send a frame, to nobody if the connection has ended meanwhile: what follows of that is seen to where it is
        lost."""
        if peer is not None:
            self.act(Send(peer, message))

    def unpin(self, owner: str) -> None:
        """Let go of the pages of a transfer that nobody reads any more. Pages nobody else keeps get new epochs before
        anything else is said."""
        freed, epochs = self.ledger.end(owner)
        if freed and not self.push:
            self.act(Epochs(self.buffer, freed, epochs))
        if self.pool is not None:
            self.ledger.give_back(freed)

    def close(self, process: PeerProcess, reason: str) -> None:
        """Let go of all ended connections of a process."""
        for peer in self.processes.forget(process):
            self.act(Close(peer, reason))
