"""What the parts of a sending machine share: the engine's facts, the books, and the actions of the step at hand."""

from __future__ import annotations

from homenode.transfer.scheduler_events import ToScheduler
from homenode.transfer.setup.settings import TransferConfig
from homenode.transfer.state.deadlines import DeadlineHeap, Leases, RecentEnds
from homenode.transfer.state.ledger import Ledger, PageQuota
from homenode.transfer.state.machine import Action, Close, Epochs, Limits, Own, Send, Tell
from homenode.transfer.state.pages import chunk_pages
from homenode.transfer.state.peers import PeerProcess, Processes
from homenode.transfer.state.stats import StatsCounter
from homenode.transfer.wire.message import Message


class SenderContext:
    """`now` and `actions` are of the input being handled."""

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
        lent = self.pool.layout if self.pool is not None else self.layout
        size = (
            settings.pd_cpu_buffer_size or settings.pd_buffer_size if self.pool is not None else settings.pd_buffer_size
        )
        self.ledger = Ledger(lent.blocks)
        self.admission = PageQuota(
            min(size // lent.block_bytes, lent.blocks), settings.pd_pull_backpressure_reserve_pct
        )
        self.deadlines = DeadlineHeap()
        self.leases = Leases(
            min(settings.pd_pull_pending_ttl, 1e6), max(limits.longest, settings.pd_pull_pending_ttl), self.deadlines
        )
        self.ended = RecentEnds(limits.remembered)
        self.processes = Processes(limits)
        self.tally = StatsCounter()
        self.now = 0.0
        self.actions: list[Action] = []
        self._tokens = 0

    @property
    def buffer(self) -> bytes:
        """Of the pages that are lent."""
        return self.pool.id if self.pool is not None else self.own.cache.id

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

    def end_loans(self, owner: str) -> None:
        """Nobody of this hand-over reads its pages any more. Pages nobody else keeps get new epochs before anything
        else is said."""
        freed, epochs = self.ledger.end(owner)
        if freed and not self.push:
            self.act(Epochs(self.buffer, freed, epochs))
        if self.pool is not None:
            self.ledger.give_back(freed)

    def close(self, process: PeerProcess, reason: str) -> None:
        """Let go of all ended connections of a process."""
        for peer in self.processes.forget(process):
            self.act(Close(peer, reason))
