"""One hand-over at the sender, from the moment the receiver has taken it."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from homenode.transfer.ended import End
from homenode.transfer.ledger import PageState
from homenode.transfer.machine import Announcing, Copy, Foreseen, Send, SendPages, Tell
from homenode.transfer.message import Abandon, Data, Drained, Message, OfferReply, Read, Ready, ready
from homenode.transfer.pages import first_target, page_count, span_bytes, tokens_in
from homenode.transfer.processes import Process
from homenode.transfer.seam import Computed, Returned
from homenode.transfer.sending import Sending

_MOST_AT_ONCE = 4096  # pages in one Ready


@dataclass
class _Going:
    """Pages under way: a copy, or bytes given to the kernel."""

    first: int
    count: int
    begun: float


@dataclass
class Outgoing:
    """Pages 0 .. held - 1 are at the receiver already; those before `computed` lie in `table`, for those before `asked` a copy was asked for, and
    those before `told` were announced or sent."""

    with_: Sending
    ticket: str
    address: str
    tokens: int
    identities: list[bytes]
    begun: float
    pull_id: int = -1
    process: Process | None = None
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
    copies: dict[int, _Going] = field(default_factory=dict)
    sends: dict[int, _Going] = field(default_factory=dict)
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

    def objection(self, reply: OfferReply) -> str | None:
        """What is wrong with the answer to the offer; None: nothing."""
        indexes = reply.already_sent_indexes
        if any(a >= b for a, b in pairwise(indexes)) or (indexes and indexes[-1] >= self.pages):
            return "already_sent_indexes are not increasing page numbers"
        if not self.with_.push:
            return "targets, though the receiver is to read" if reply.targets else None
        if not self.with_.shared:
            return None
        assert self.process is not None
        buffer = reply.targets[0].buffer if reply.targets else b""
        blocks = [target.page for target in reply.targets]
        held = _leading(indexes)
        layout = self.process.buffers.get(buffer)
        if held == self.pages:
            return "targets for pages that are held" if reply.targets else None
        if layout is None or any(target.buffer != buffer for target in reply.targets):
            return "targets in a buffer that was not registered"
        wanted = page_count(self.tokens, layout.block_size) - first_target(held, self.with_.page_tokens, layout.block_size)
        if len(blocks) != wanted or len(set(blocks)) != wanted or max(blocks) >= layout.blocks:
            return "targets that are not as many different blocks of the buffer as are needed"
        return None

    def open(self, reply: OfferReply) -> None:
        """The receiver takes it; its answer was found good."""
        self.admitted = True
        self.in_place = reply.in_place
        self.held = self.computed = self.asked = self.told = _leading(reply.already_sent_indexes)
        self.table, self.digests = [-1] * self.pages, [None] * self.pages
        if self.with_.pool is not None:
            self.pool = [-1] * self.pages
        if reply.targets and self.process is not None:
            self.target = reply.targets[0].buffer
            skipped = (
                first_target(self.held, self.with_.page_tokens, self.process.buffers[self.target].block_size) if self.with_.shared else 0
            )
            self.targets = [-1] * skipped + [target.page for target in reply.targets]
        self.with_.admission.keep(self.ticket, self.pages - self.held)

    def add(self, first: int, blocks: list[int], last: bool) -> None:
        """Pages were computed."""
        new = blocks[self.computed - first :] if first <= self.computed else None
        if new is None or first + len(blocks) > self.pages or (last and first + len(blocks) < self.pages and not self.over):
            self.call_off("internal", f"pages from {first} on were computed, {self.computed} are known of {self.pages}")
        elif not self.over and not self.read:
            self.table[self.computed : self.computed + len(new)] = new
            self.computed += len(new)
            if self.with_.pool is None:
                self.with_.ledger.lend(self.ticket, new, PageState.READY)
            self.with_.leases.grant(self.pull_id, self.with_.now)
        self.computing = self.computing and not last
        self.pump()

    def announcing(self) -> Announcing | None:
        """Whether the next pages can be announced as soon as they were computed; see `machine.Announcing`."""
        state, first, process = self.with_, self.told, self.process
        peer = process.made if process is not None else None
        if peer is None or not state.shared or state.push or state.pool is not None or not self._is_next(peer, first):
            return None
        most, left = min(state.chunk, _MOST_AT_ONCE), self.tokens - first * state.page_tokens
        return Announcing(self.ticket, peer, self.pull_id, first, self.pages, most, left, lambda: self._is_next(peer, first))

    def _is_next(self, peer: int, first: int) -> bool:
        """Whether page `first` is the next to be computed, and nothing is under way before it."""
        if self.copies or self.over or self.read or self.process is None or self.process.made != peer or self.process.banned:
            return False
        return first == self.told == self.computed < self.pages

    def foresee(self, computed: Computed) -> Foreseen | None:
        """What `add` will lead to, where these pages can be announced as soon as their digests are known; see `machine.Foreseen`."""
        next_ = self.announcing()
        state, first, count, size, blocks = self.with_, computed.first, len(computed.blocks), self.with_.page_tokens, computed.blocks
        if next_ is None or first != next_.first or not 0 < count <= next_.most or computed.last != (first + count == self.pages):
            return None
        peer, tokens = next_.peer, min(next_.tokens, count * size)
        if first + count > self.pages:
            return None
        copy = Copy(0, state.own.cache.id, blocks, state.own.cache.id, [], 0, count, tokens, size, digest_only=True)

        def then(digests: list[list[bytes]]) -> list[Send | Tell] | None:
            return [Send(peer, ready(self.pull_id, first, digests[0], computed.last, state.buffer, (blocks, state.ledger.epochs(blocks))))]

        return Foreseen((copy,), then)

    def pump(self) -> None:
        """Keep the copy thread at work, and settle what can be settled."""
        while (
            not self.over
            and not self.read
            and self.asked < self.computed
            and len(self.copies) + len(self.sends) < self.with_.limits.in_flight
        ):
            self._copy(self.asked, min(self.with_.chunk, self.computed - self.asked))
        self._settle()

    def copied(self, token: int, digests: list[bytes] | None, reason: str) -> None:
        """Answer to a copy."""
        going = self.copies.pop(token)
        if digests is None or len(digests) != going.count:
            self.call_off("copy", f"KV could not be copied out: {reason or 'wrong number of digests'}")
        else:
            self.digests[going.first : going.first + going.count] = digests
            if self.with_.pool is not None:
                self.with_.ledger.mark(self.pool[going.first : going.first + going.count], PageState.READY)
            self._announce()
        self.pump()

    def sent(self, token: int, ok: bool) -> None:
        """Answer to bytes that were to be sent."""
        going = self.sends.pop(token)
        self.with_.deadlines.drop(("send", token))
        assert self.process is not None
        nbytes = self._bytes(going.first, going.count)
        self.process.queued -= nbytes
        if ok:
            self.process.rate.took(nbytes, going.begun, self.with_.now)
        elif self.with_.push:
            self.call_off("lost", "the connection ended while KV was sent")
        self.pump()

    def read_by(self, peer: int, read: Read) -> bool:
        """The receiver wants bytes. False if it may not ask for these."""
        if read.first < self.held or read.first + read.count > self.told:
            return False
        if self.read:
            self.with_.send(peer, Data(self.pull_id, read.first, 0, 0, [], False, epochs_ok=False))
            return True
        self.reads += read.count
        if len(self.sends) >= 2 * self.with_.limits.in_flight or self.reads > self.with_.limits.reads * self.pages:
            return False
        self.with_.leases.grant(self.pull_id, self.with_.now)
        self._send_pages(peer, read.first, read.count)
        return True

    def done(self) -> None:
        """The receiver reads no more."""
        if self.told == self.pages:
            self._complete("done")
        else:
            self.over = self.over or "done early"
        self.end = "done"
        self.read = True
        self.pump()

    def store(self, pages: int, ok: bool, reason: str) -> bool:
        """Push: the receiver has verified pages. False if it cannot have."""
        if pages < self.stored or pages > self.told:
            return False
        self.stored = pages
        if not self.over:
            self.with_.leases.grant(self.pull_id, self.with_.now)
        if not ok:
            self.drained = True
            self.call_off("rejected", reason or "the receiver rejected pages", notify=False)
        elif pages == self.pages:
            self._complete("done")
        self.pump()
        return True

    def cancel(self) -> None:
        """Push: the receiver wants nothing more written."""
        self.drained = True
        if not self.over:
            self.over, self.end = "cancelled", "called off"
            self.with_.tally.failed["cancelled"] += 1
        self.farewell = None
        self.pump()

    def call_off(self, code: str, reason: str, *, notify: bool = True) -> None:
        """Nothing more is announced. What was announced may still be read. The caller settles."""
        if self.over or self.complete:
            return
        self.over = reason
        self.with_.tally.failed[code] += 1
        self.farewell = Abandon(self.pull_id, reason) if notify else None
        if self.told == self.held:
            self.read = True

    def gone(self, code: str, reason: str, *, unreadable: bool) -> None:
        """The receiver is lost. `unreadable`: nobody can read the pages any more, or whoever tries will notice."""
        self.call_off(code, reason, notify=False)
        self.farewell = None
        self.read = self.read or unreadable
        self.pump()

    def expire(self) -> None:
        """The lease ran out."""
        self.end = "expired"
        self.call_off("expired", "the receiver neither read nor renewed in time")
        self.read = True
        self.pump()

    def _copy(self, first: int, count: int) -> None:
        token, state = self.with_.token(), self.with_
        self.asked = first + count
        self.copies[token] = _Going(first, count, state.now)
        target, table, digest_only = state.own.cache.id, self.table, True
        if state.pool is not None:
            self.pool[first : first + count] = state.ledger.take(self.ticket, count)
            target, table, digest_only = state.pool.id, self.pool, False
        elif state.push and state.shared:
            target, table, digest_only = self.target, self.targets, False
        state.act(
            Copy(
                token,
                state.own.cache.id,
                list(self.table),
                target,
                list(table),
                first,
                count,
                self.tokens,
                state.page_tokens,
                digest_only=digest_only,
            )
        )

    def _announce(self) -> None:
        """Tell of, or send, all pages up to the first whose copy is not complete."""
        while not self.over and not self.read and self.told < self.pages and self.digests[self.told] is not None:
            first, past = self.told, min(self.told + _MOST_AT_ONCE, self.pages)
            if None in self.digests[first:past]:
                past = self.digests.index(None, first)
            peer = self.process.made if self.process is not None else None
            if peer is None:
                return
            self.told = past
            if self.with_.push and not self.with_.shared:
                for at in range(first, past, self.with_.chunk):
                    self._send_pages(peer, at, min(self.with_.chunk, past - at))
            else:
                digests = [digest for digest in self.digests[first:past] if digest is not None]
                self.with_.send(peer, self._ready(first, past, digests))
                self.with_.leases.grant(self.pull_id, self.with_.now)

    def _ready(self, first: int, past: int, digests: list[bytes]) -> Ready:
        state, last = self.with_, past == self.pages
        if state.push:
            return ready(self.pull_id, first, digests, last)
        pages = (self.table if state.pool is None else self.pool)[first:past]
        return ready(self.pull_id, first, digests, last, state.buffer, (pages, state.ledger.epochs(pages)))

    def _send_pages(self, peer: int, first: int, count: int) -> None:
        token, state = self.with_.token(), self.with_
        nbytes = self._bytes(first, count)
        digests = [digest for digest in self.digests[first : first + count] if digest is not None]
        header = Data(self.pull_id, first, count, nbytes, digests, first + count == self.pages)
        blocks = (self.table if state.pool is None else self.pool)[first : first + count]
        tokens = [tokens_in(page, self.tokens, state.page_tokens) for page in range(first, first + count)]
        self.sends[token] = _Going(first, count, state.now)
        assert self.process is not None
        self.process.queued += nbytes
        state.deadlines.set(("send", token), state.now + self.process.rate.allowed(self.process.queued))
        state.act(SendPages(token, peer, header, state.buffer, blocks, tokens))

    def _bytes(self, first: int, count: int) -> int:
        return span_bytes(self.with_.layout, first, count, self.tokens, self.with_.page_tokens)

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
        copied = bool(self.over) or self.read or (self.asked == self.pages and (not state.push or self.told == self.pages))
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


def _leading(indexes: list[int]) -> int:
    """How many pages from the first on are among them."""
    return next((i for i, index in enumerate(indexes) if index != i), len(indexes))
