"""One transfer at its sender: the state it is in (`machine.SendState`), and what is done in each.

Pages are computed by the engine, digested or copied, then announced or sent. The scheduler has its blocks back when
nobody reads them any more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from homenode.transfer.scheduler_events import Returned
from homenode.transfer.state.context import SenderContext
from homenode.transfer.state.deadlines import End
from homenode.transfer.state.ledger import PagesInFlight, PageState
from homenode.transfer.state.machine import SEND_TRANSITIONS, Copy, SendPages, SendState, check_transition
from homenode.transfer.state.pages import first_target, page_count, span_bytes, tokens_in
from homenode.transfer.state.peers import PeerProcess
from homenode.transfer.wire.message import Abandon, Data, Drained, Message, OfferReply, Read, Ready, ready

MOST_AT_ONCE = 4096  # pages in one Ready
_UNADMITTED = (SendState.WAITING, SendState.OFFERED)


@dataclass(eq=False)
class SendSession:
    """A transfer that the scheduler wants. Pages 0 .. held - 1 are at the receiver already; those before `computed` lie
    in `table`, for those before `requested` a copy was asked for, those before `announced` were announced or sent, and
    those before `stored` the receiver has said to have."""

    ctx: SenderContext
    ticket: str
    address: str
    tokens: int
    identities: list[bytes]
    begun: float
    state: SendState = SendState.WAITING
    wait_s: float = 0.0  # that it may wait before it begins
    pull_id: int = -1
    process: PeerProcess | None = None
    held: int = 0
    computed: int = 0
    requested: int = 0
    announced: int = 0
    stored: int = 0
    table: list[int] = field(default_factory=list)  # the engine's block of each page, -1: not to be sent
    pool: list[int] = field(default_factory=list)  # with offload: the pool's page
    digests: list[bytes | None] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)  # push into shared memory: the receiver's blocks
    target: bytes = b""
    copies: dict[int, PagesInFlight] = field(default_factory=dict)
    sends: dict[int, PagesInFlight] = field(default_factory=dict)
    reads: int = 0  # pages that were asked for, however often
    farewell: Message | None = None  # said when nothing is under way any more
    end_reason: str = ""  # why nothing more is announced
    end: End = "called off"
    computing: bool = True
    early: bool = False  # Done came before the answer to the offer
    in_place: bool = False  # the receiver may read pages in the midst of its steps until it says Done or is dead
    retired: bool = False  # the lease ran out on such ones
    drained: bool = False  # the receiver wants to know when nothing is written any more
    returned: bool = False  # the scheduler has its blocks back

    def enter(self, state: SendState) -> None:
        """Go over to another state. InternalError where no transition leads there."""
        self.state = check_transition(SEND_TRANSITIONS, self.state, state)

    @property
    def pages(self) -> int:
        return len(self.identities)

    @property
    def is_admitted(self) -> bool:
        """The receiver has taken it."""
        return self.state not in _UNADMITTED

    @property
    def is_read_out(self) -> bool:
        """Nobody reads its pages any more."""
        return self.state in (SendState.RELEASED, SendState.ENDED)

    @property
    def is_lent(self) -> bool:
        """Its pages must not change before the receiver says so, or is dead."""
        dead = self.process is None or self.process.dead
        readable = self.is_admitted and not self.is_read_out
        return self.in_place and readable and self.announced > self.held and not dead

    @property
    def is_idle(self) -> bool:
        """No copy and no bytes are under way."""
        return not self.copies and not self.sends

    @property
    def is_finished(self) -> bool:
        """Nothing is left to wait for."""
        if not self.returned or not self.is_idle:
            return False
        return self.is_read_out or (self.ctx.push and self.state in (SendState.CUT_OFF, SendState.COMPLETE))

    def _bytes(self, first: int, count: int) -> int:
        return span_bytes(self.ctx.layout, first, count, self.tokens, self.ctx.page_tokens)

    # The receiver's answer

    def objection(self, reply: OfferReply) -> str | None:
        """Return what is wrong with the answer to the offer; None: nothing."""
        indexes = reply.already_sent_indexes
        if any(a >= b for a, b in pairwise(indexes)) or (indexes and indexes[-1] >= self.pages):
            return "already_sent_indexes are not increasing page numbers"
        if not self.ctx.push:
            return "targets, though the receiver is to read" if reply.targets else None
        return self._target_objection(reply) if self.ctx.shared else None

    def _target_objection(self, reply: OfferReply) -> str | None:
        assert self.process is not None
        buffer = reply.targets[0].buffer if reply.targets else b""
        blocks = [target.page for target in reply.targets]
        held = leading_pages(reply.already_sent_indexes)
        layout = self.process.buffers.get(buffer)
        if held == self.pages:
            return "targets for pages that are held" if reply.targets else None
        if layout is None or any(target.buffer != buffer for target in reply.targets):
            return "targets in a buffer that was not registered"
        first = first_target(held, self.ctx.page_tokens, layout.block_size)
        wanted = page_count(self.tokens, layout.block_size) - first
        if len(blocks) != wanted or len(set(blocks)) != wanted or max(blocks) >= layout.blocks:
            return "targets that are not as many different blocks of the buffer as are needed"
        return None

    def open(self, reply: OfferReply) -> None:
        """Begin, as the receiver takes it; its answer was found good."""
        self.enter(SendState.SENDING)
        self.in_place = reply.in_place
        self.held = self.computed = self.requested = self.announced = leading_pages(reply.already_sent_indexes)
        self.table, self.digests = [-1] * self.pages, [None] * self.pages
        if self.ctx.pool is not None:
            self.pool = [-1] * self.pages
        if reply.targets and self.process is not None:
            self.target, skipped = reply.targets[0].buffer, 0
            if self.ctx.shared:
                block_size = self.process.buffers[self.target].block_size
                skipped = first_target(self.held, self.ctx.page_tokens, block_size)
            self.targets = [-1] * skipped + [target.page for target in reply.targets]
        self.ctx.admission.keep(self.ticket, self.pages - self.held)

    # Pages that leave

    def add(self, first: int, blocks: list[int], last: bool) -> None:
        """Take pages that were computed."""
        new, past = blocks[self.computed - first :] if first <= self.computed else None, first + len(blocks)
        early_end = last and past < self.pages and not self.end_reason
        if new is None or past > self.pages or early_end:
            self.call_off("internal", f"pages from {first} on were computed, {self.computed} are known of {self.pages}")
        elif self.state is SendState.SENDING:
            self.table[self.computed : self.computed + len(new)] = new
            self.computed += len(new)
            if self.ctx.pool is None:
                self.ctx.ledger.pin(self.ticket, new, PageState.READY)
            self.ctx.leases.grant(self.pull_id, self.ctx.now)
        self.computing = self.computing and not last
        self.pump()

    def pump(self) -> None:
        """Keep the copy thread at work, and settle what can be settled."""
        ctx = self.ctx
        while (
            self.state is SendState.SENDING
            and self.requested < self.computed
            # a reader waits for digests
            and len(self.copies) + (len(self.sends) if ctx.push else 0) < ctx.limits.in_flight
        ):
            # The first ones soon, then fewer and larger.
            most = max(ctx.chunk, min(self.requested - self.held, ctx.most))
            self._copy(self.requested, min(most, self.computed - self.requested))
        self._settle()

    def _copy(self, first: int, count: int) -> None:
        token, ctx = self.ctx.token(), self.ctx
        self.requested = first + count
        self.copies[token] = PagesInFlight(first, count, ctx.now)
        target, table, digest_only = ctx.own.cache.id, self.table, True
        if ctx.pool is not None:
            self.pool[first : first + count] = ctx.ledger.take(self.ticket, count)
            target, table, digest_only = ctx.pool.id, self.pool, False
        elif ctx.push and ctx.shared:
            target, table, digest_only = self.target, self.targets, False
        where = (first, count, self.tokens, ctx.page_tokens)
        source = (ctx.own.cache.id, list(self.table))
        ctx.act(Copy(token, *source, target, list(table), *where, digest_only=digest_only))

    def copied(self, token: int, digests: list[bytes] | None, reason: str) -> None:
        """Take the answer to a copy."""
        going = self.copies.pop(token)
        if digests is None or len(digests) != going.count:
            self.call_off("copy", f"KV could not be copied out: {reason or 'wrong number of digests'}")
        else:
            self.digests[going.first : going.first + going.count] = digests
            if self.ctx.pool is not None:
                self.ctx.ledger.mark(self.pool[going.first : going.first + going.count], PageState.READY)
            self._announce()
        self.pump()

    def _announce(self) -> None:
        """Announce, or send, all pages up to the first whose copy is not complete."""
        ctx = self.ctx
        while (
            self.state is SendState.SENDING and self.announced < self.pages and self.digests[self.announced] is not None
        ):
            first, past = self.announced, min(self.announced + MOST_AT_ONCE, self.pages)
            if None in self.digests[first:past]:
                past = self.digests.index(None, first)
            peer = self.process.made if self.process is not None else None
            if peer is None:
                return
            self.announced = past
            if ctx.push and not ctx.shared:
                for at in range(first, past, ctx.most):
                    self._send_pages(peer, at, min(ctx.most, past - at))
            else:
                digests = [digest for digest in self.digests[first:past] if digest is not None]
                ctx.send(peer, self._ready(first, past, digests))
                ctx.leases.grant(self.pull_id, ctx.now)

    def _ready(self, first: int, past: int, digests: list[bytes]) -> Ready:
        ctx, last = self.ctx, past == self.pages
        if ctx.push:
            return ready(self.pull_id, first, digests, last)
        pages = (self.table if ctx.pool is None else self.pool)[first:past]
        return ready(self.pull_id, first, digests, last, ctx.buffer, (pages, ctx.ledger.epochs(pages)))

    def _send_pages(self, peer: int, first: int, count: int) -> None:
        token, ctx = self.ctx.token(), self.ctx
        nbytes = self._bytes(first, count)
        digests = [digest for digest in self.digests[first : first + count] if digest is not None]
        header = Data(self.pull_id, first, count, nbytes, digests, first + count == self.pages)
        blocks = (self.table if ctx.pool is None else self.pool)[first : first + count]
        tokens = [ctx.page_tokens] * (count - 1) + [tokens_in(first + count - 1, self.tokens, ctx.page_tokens)]
        self.sends[token] = PagesInFlight(first, count, ctx.now)
        assert self.process is not None
        self.process.queued += nbytes
        ctx.deadlines.set(("send", token), ctx.now + self.process.rate.allowed(self.process.queued))
        ctx.act(SendPages(token, peer, header, ctx.buffer, blocks, tokens))

    def sent(self, token: int, ok: bool) -> None:
        """Take the answer to bytes that were to be sent."""
        going = self.sends.pop(token)
        self.ctx.deadlines.drop(("send", token))
        assert self.process is not None
        nbytes = self._bytes(going.first, going.count)
        self.process.queued -= nbytes
        if ok:
            self.process.rate.took(nbytes, going.begun, self.ctx.now)
        elif self.ctx.push:
            self.call_off("lost", "the connection ended while KV was sent")
        self.pump()

    # What the receiver does with them

    def send_bytes(self, peer: int, read: Read) -> bool:
        """Send bytes that the receiver asked for. False if it may not ask for these."""
        if read.first < self.held or read.first + read.count > self.announced:
            return False
        if self.is_read_out:
            self.ctx.send(peer, Data(self.pull_id, read.first, 0, 0, [], False, epochs_ok=False))
            return True
        self.reads += read.count
        limits = self.ctx.limits
        if len(self.sends) >= 2 * limits.in_flight or self.reads > limits.reads * self.pages:
            return False
        self.ctx.leases.grant(self.pull_id, self.ctx.now)
        self._send_pages(peer, read.first, read.count)
        return True

    def finish(self) -> None:
        """Release the pages, as the receiver reads no more."""
        if self.announced == self.pages:
            self._complete()
        elif self.state is SendState.SENDING:
            self._cut_off("done early")
        self.end = "done"
        self._release()
        self.pump()

    def store(self, pages: int, ok: bool, reason: str) -> bool:
        """Push: take note that the receiver has verified pages. False if it cannot have."""
        if pages < self.stored or pages > self.announced:
            return False
        self.stored = pages
        if not self.end_reason:
            self.ctx.leases.grant(self.pull_id, self.ctx.now)
        if not ok:
            self.drained = True
            self.call_off("rejected", reason or "the receiver rejected pages", notify=False)
        elif pages == self.pages:
            self._complete()
        self.pump()
        return True

    def cancel(self) -> None:
        """Push: write nothing more, as the receiver wants it."""
        self.drained = True
        if self.state is SendState.SENDING:
            self._cut_off("cancelled")
            self.ctx.counter.failed["cancelled"] += 1
        self.farewell = None
        self.pump()

    # Ends

    def call_off(self, code: str, reason: str, *, notify: bool = True) -> None:
        """Announce nothing more. What was announced may still be read. The caller settles."""
        if self.state is not SendState.SENDING:
            return
        self._cut_off(reason)
        self.ctx.counter.failed[code] += 1
        self.farewell = Abandon(self.pull_id, reason) if notify else None
        if self.announced == self.held:
            self._release()

    def lose(self, code: str, reason: str, *, unreadable: bool) -> None:
        """End it, as the receiver is lost. `unreadable`: nobody can read the pages any more, or whoever tries will
        notice."""
        self.call_off(code, reason, notify=False)
        self.farewell = None
        if unreadable:
            self._release()
        self.pump()

    def expire(self) -> None:
        """End it, as the lease ran out."""
        self.end = "expired"
        self.call_off("expired", "the receiver neither read nor renewed in time")
        self._release()
        self.pump()

    def stop_computing(self, code: str, reason: str) -> None:
        """End it, as the scheduler computes nothing more of it."""
        self.computing = False
        if self.announced < self.pages:
            self.call_off(code, reason)
        self.pump()

    def _cut_off(self, reason: str) -> None:
        self.end_reason = reason
        self.enter(SendState.CUT_OFF)

    def _complete(self) -> None:
        if self.state is SendState.SENDING:
            self.enter(SendState.COMPLETE)
            self.end, count = "done", self.pages - self.held
            nbytes = self._bytes(self.held, count)
            self.ctx.counter.complete(self.ctx.now - self.begun, count, self.held, nbytes)

    def _release(self) -> None:
        if not self.is_read_out:
            self.enter(SendState.RELEASED)

    def _settle(self) -> None:
        """Say farewell, and give pages and blocks back, once each may be."""
        ctx, read_out = self.ctx, self.is_read_out
        if self.is_idle:
            self._say_farewell()
            if read_out:
                ctx.unpin(self.ticket)
        if not self.returned and self._may_return():
            self.returned = True
            if ctx.pool is None:
                ctx.unpin(self.ticket)
                ctx.admission.release(self.ticket)
            ctx.tell(Returned(ctx.now, self.ticket))
        if read_out and self.is_idle and ctx.pool is not None:
            ctx.admission.release(self.ticket)

    def _say_farewell(self) -> None:
        farewell = Drained(self.pull_id) if self.drained else self.farewell
        if farewell is not None and self.process is not None:
            self.ctx.send(self.process.by_made, farewell)
        self.farewell, self.drained = None, False

    def _may_return(self) -> bool:
        """Tell whether the scheduler may have its blocks back: nothing of them is computed, copied, sent or read."""
        ctx = self.ctx
        if self.computing or self.copies or (self.sends and ctx.pool is None):
            return False
        if self.is_read_out:
            return True
        if not (ctx.push or ctx.pool is not None):
            return False  # the receiver reads the blocks themselves
        copied = self.requested == self.pages and (not ctx.push or self.announced == self.pages)
        return self.state is SendState.CUT_OFF or copied


def leading_pages(indexes: list[int]) -> int:
    """Count how many pages from the first on are among them."""
    return next((i for i, index in enumerate(indexes) if index != i), len(indexes))
