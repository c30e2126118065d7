"""The pages of one hand-over at the sender: which were computed, copied, announced; where they lie, and when they are
free again."""

from __future__ import annotations

from dataclasses import dataclass, field

from homenode.transfer.scheduler_events import Returned
from homenode.transfer.state.deadlines import End
from homenode.transfer.state.pages import span_bytes
from homenode.transfer.state.peers import PeerProcess
from homenode.transfer.state.sender_context import SenderContext
from homenode.transfer.wire.message import Abandon, Drained, Message


@dataclass
class PagesInFlight:
    """Pages under way: a copy, or bytes given to the kernel."""

    first: int
    count: int
    begun: float


@dataclass
class OutgoingPages:
    """Pages 0 .. held - 1 are at the receiver already; those before `computed` lie in `table`, for those before `asked`
    a copy was asked for, and those before `told` were announced or sent."""

    with_: SenderContext
    ticket: str
    address: str
    tokens: int
    identities: list[bytes]
    begun: float
    patience: float = 0.0  # seconds that it may wait before it begins
    pull_id: int = -1
    process: PeerProcess | None = None
    admitted: bool = False
    held: int = 0
    computed: int = 0
    asked: int = 0
    told: int = 0
    stored: int = 0
    table: list[int] = field(default_factory=list)  # the engine's block of each page, -1: not to be sent
    pool: list[int] = field(default_factory=list)  # with offload: the pool's page
    digests: list[bytes | None] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)  # push into shared memory: the receiver's blocks
    target: bytes = b""
    copies: dict[int, PagesInFlight] = field(default_factory=dict)
    sends: dict[int, PagesInFlight] = field(default_factory=dict)
    reads: int = 0  # pages that were asked for, again ones included
    computing: bool = True
    over: str = ""  # why nothing more is announced
    early: bool = False  # Done came before the answer to the offer
    read: bool = False  # nobody reads its pages any more
    in_place: bool = False  # the receiver may read pages in the midst of its steps until it says Done or is dead
    retired: bool = False  # the lease ran out on such ones
    drained: bool = False  # the receiver wants to know when nothing is written any more
    farewell: Message | None = None  # said when nothing is under way any more
    returned: bool = False
    complete: bool = False
    end: End = "called off"

    @property
    def pages(self) -> int:
        return len(self.identities)

    @property
    def lent(self) -> bool:
        """Its pages must not change before the receiver says so, or is dead."""
        dead = self.process is None or self.process.dead
        return self.in_place and self.admitted and not self.read and self.told > self.held and not dead

    @property
    def finished(self) -> bool:
        """Nothing is left to wait for."""
        quiet = not self.copies and not self.sends
        return self.returned and quiet and (bool(self.over) or self.complete if self.with_.push else self.read)

    def _bytes(self, first: int, count: int) -> int:
        return span_bytes(self.with_.layout, first, count, self.tokens, self.with_.page_tokens)

    # How it ends

    def call_off(self, code: str, reason: str, *, notify: bool = True) -> None:
        """Nothing more is announced. What was announced may still be read. The caller settles."""
        if self.over or self.complete:
            return
        self.over = reason
        self.with_.tally.failed[code] += 1
        self.farewell = Abandon(self.pull_id, reason) if notify else None
        if self.told == self.held:
            self.read = True

    def _complete(self, end: End) -> None:
        if not self.complete and not self.over:
            self.complete, self.end = True, end
            nbytes = self._bytes(self.held, self.pages - self.held)
            self.with_.tally.complete(self.with_.now - self.begun, self.pages - self.held, self.held, nbytes)

    def _settle(self) -> None:
        state, quiet = self.with_, not self.copies and not self.sends
        if quiet and (self.farewell is not None or self.drained):
            farewell = Drained(self.pull_id) if self.drained else self.farewell
            if farewell is not None and self.process is not None:
                state.send(self.process.by_made, farewell)
            self.farewell, self.drained = None, False
        if self.read and quiet:
            state.end_loans(self.ticket)
        copied = (
            bool(self.over) or self.read or (self.asked == self.pages and (not state.push or self.told == self.pages))
        )
        kept = not (state.push or state.pool is not None or self.read)
        engine = bool(self.copies) or (bool(self.sends) and state.pool is None)
        if not self.returned and not self.computing and copied and not kept and not engine:
            self.returned = True
            if state.pool is None:
                state.end_loans(self.ticket)
                state.admission.release(self.ticket)
            state.tell(Returned(state.now, self.ticket))
        if self.read and quiet and state.pool is not None:
            state.admission.release(self.ticket)
