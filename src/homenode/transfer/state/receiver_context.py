"""What the parts of a receiving machine share: the engine's facts, the books, and the actions of the step at hand."""

from __future__ import annotations

import math

from homenode.transfer.scheduler_events import ToScheduler
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.state.deadlines import DeadlineHeap, DoneQueue
from homenode.transfer.state.ledger import Ledger, PageQuota
from homenode.transfer.state.machine import Action, Limits, Own, Send, Tell
from homenode.transfer.state.peers import PeerProcess, Processes
from homenode.transfer.state.stats import StatsCounter
from homenode.transfer.wire.message import Done, Message


class ReceiverContext:
    """`now` and `actions` are of the input being handled."""

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
        self.tally = StatsCounter()
        self.ttl = settings.pd_pull_pending_ttl
        self.now = 0.0
        self.actions: list[Action] = []
        self._tokens = 0

    def token(self) -> int:
        self._tokens += 1
        return self._tokens

    def act(self, action: Action) -> None:
        self.actions.append(action)

    def tell(self, event: ToScheduler) -> None:
        self.act(Tell(event))

    def send(self, peer: int | None, message: Message) -> None:
        """To nobody if the connection has ended meanwhile: what then follows of it is seen to where it is lost."""
        if peer is not None:
            self.act(Send(peer, message))

    def say_done(self, process: PeerProcess, pull_id: int, ok: bool, lease: float) -> None:
        """The sender's pages are not read any more. Said again until acknowledged, or until the `lease` has ended in
        any case."""
        if process.dead or (process.banned and lease < math.inf):
            return
        done = Done(pull_id, ok)
        self.dones.say(process.incarnation, done, self.now, lease)
        self.send(process.by_made, done)
