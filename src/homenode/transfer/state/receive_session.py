"""One transfer at its receiver: the state it is in (`machine.ReceiveState`), and what is done in each.

Pages are announced, asked for, copied or received, and compared with their digests. The scheduler is told of those that
are in place, and of how it ends; the sender, when its pages are not read any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from homenode.transfer.scheduler_events import Arrived, Failed, Forgotten, Quarantined
from homenode.transfer.state.context import ReceiverContext
from homenode.transfer.state.ledger import PageSources, PagesRequested, PageState, PageWindow
from homenode.transfer.state.machine import RECEIVE_TRANSITIONS, Copy, Receive, ReceiveState, check_transition
from homenode.transfer.state.pages import chunk_pages, first_target, page_count, span_bytes
from homenode.transfer.state.peers import PeerProcess
from homenode.transfer.wire.message import Cancel, Data, Offer, Read, Ready, Stored, places_of
from homenode.units import format_count

Ending = Literal["", "failed", "stopped", "forgotten"]  # what the scheduler is told once nobody writes any more


UNANSWERED = frozenset({ReceiveState.QUEUED, ReceiveState.RESERVING, ReceiveState.WITHDRAWN})  # by this side
_READING = frozenset({ReceiveState.RECEIVING, ReceiveState.CUT_OFF})  # more may be asked for
_UNTOLD = _READING | {ReceiveState.STOPPING, ReceiveState.COMPLETE}  # the scheduler is still to be told of the end


@dataclass(eq=False)
class ReceiveSession:
    """A transfer that a sender has offered. `placed`: pages that are read in place; until the scheduler says `Unused`
    the sender must keep them, however the ticket ended."""

    ctx: ReceiverContext
    process: PeerProcess
    offer: Offer
    begun: float
    state: ReceiveState = ReceiveState.QUEUED
    window: PageWindow = field(init=False)
    sources: PageSources = field(default_factory=PageSources)
    blocks: list[int] | None = None
    held: int = 0
    chunk: int = 0  # pages that are asked for at once
    copies: dict[int, PagesRequested] = field(default_factory=dict)
    reads: dict[int, PagesRequested] = field(default_factory=dict)  # by first page
    placed: int = 0
    end_reason: str = ""  # why nothing more will be announced
    ending: Ending = ""
    in_place: bool = False  # full pages may be read where they are
    wanted: bool = False  # the request is here
    cancelled: bool = False  # the sender was told
    drained: bool = False  # the sender writes no more
    rejected: bool = False  # for a page that was wrong twice
    quarantined: bool = False  # the sender may write for ever, so far as is known

    def __post_init__(self) -> None:
        self.window = PageWindow(len(self.offer.identities))

    def enter(self, state: ReceiveState) -> None:
        """Go over to another state. InternalError where no transition leads there."""
        self.state = check_transition(RECEIVE_TRANSITIONS, self.state, state)

    @property
    def ticket(self) -> str:
        return self.offer.ticket

    @property
    def pages(self) -> int:
        return self.window.pages

    @property
    def is_complete(self) -> bool:
        """Every page is, or was, in place."""
        return self.window.is_complete

    @property
    def is_answered(self) -> bool:
        """The sender's offer was accepted."""
        return self.state not in UNANSWERED

    @property
    def is_reported(self) -> bool:
        """The scheduler knows of its end."""
        return self.state in (ReceiveState.REPORTED, ReceiveState.ENDED, ReceiveState.DETACHED)

    @property
    def is_reading(self) -> bool:
        """Bytes are still to come, from a sender that must keep them."""
        return (self.state in _READING or self.state is ReceiveState.STOPPING) and not self.ending

    @property
    def is_kept(self) -> bool:
        """The sender must keep pages for it."""
        return self.is_reading or self.placed > 0

    # Blocks

    def place(self, blocks: list[int], held: int) -> bool:
        """Take the blocks it goes to. False if that is not where it fits."""
        ctx, size = self.ctx, self.ctx.layout.block_size
        first = min(first_target(held, self.offer.page_tokens, size), len(blocks))
        if len(blocks) < page_count(self.offer.tokens, size) or not 0 <= held <= self.pages:
            return False
        self.blocks, self.held = list(blocks), held
        self.chunk = chunk_pages(
            ctx.layout, self.offer.page_tokens, ctx.limits.chunk if ctx.shared else ctx.limits.read
        )
        self.window.hold(held)
        if not ctx.delay:
            self.window.announced = self.sources.first = held
        ctx.ledger.pin(self.ticket, [block for block in blocks[first:] if block >= 0], PageState.RESERVED)
        return True

    def runs(self, first: int, past: int) -> list[tuple[int, int]]:
        """The runs in which these pages will be read: the first page of each, and how many."""
        runs, at = [], first
        while at < past:
            count = self._alike(at, min(self.chunk, past - at))
            runs.append((at, count))
            at += count
        return runs

    def reads_in_place(self, page: int) -> bool:
        """Tell whether the page is read where the sender has it."""
        assert self.blocks is not None
        return self.in_place and self.blocks[page] < 0

    def _alike(self, first: int, count: int) -> int:
        """Count how many of these pages are all to be copied, or all to be read where they are."""
        if not self.in_place:
            return count
        assert self.blocks is not None
        blocks = self.blocks[first : first + count]
        if max(blocks) < 0:
            return count
        kinds = [block < 0 for block in blocks]
        return next((i for i, kind in enumerate(kinds) if kind != kinds[0]), count)

    def _blocks_of(self, first: int, count: int = 1) -> list[int]:
        assert self.blocks is not None
        size, tokens = self.ctx.layout.block_size, self.offer.tokens
        past = min((first + count) * self.offer.page_tokens, tokens)
        blocks = self.blocks[first * self.offer.page_tokens // size : page_count(past, size)]
        return [block for block in blocks if block >= 0]

    def _mark_ready(self, before: int) -> None:
        """Mark blocks whose positions are all verified."""
        assert self.blocks is not None
        size = self.ctx.layout.block_size
        tokens = min(self.window.verified * self.offer.page_tokens, self.offer.tokens)
        past = page_count(tokens, size) if tokens == self.offer.tokens else tokens // size
        blocks = self.blocks[before * self.offer.page_tokens // size : past]
        self.ctx.ledger.mark([block for block in blocks if block >= 0], PageState.READY)

    def _bytes(self, first: int, count: int) -> int:
        return span_bytes(self.ctx.layout, first, count, self.offer.tokens, self.offer.page_tokens)

    # Pages that are announced

    def objection(self, message: Ready | Data) -> str | None:
        """Return what is wrong with an announcement; None: nothing."""
        if not self.is_answered:
            return "pages of a hand-over that was not accepted"
        digest_bytes = self.ctx.digest_bytes
        if isinstance(message, Ready):
            count, wrong_digests = message.count, len(message.digests) != message.count * digest_bytes
        else:
            count, wrong_digests = len(message.digests), not {digest_bytes}.issuperset(map(len, message.digests))
        past = message.first + count
        if message.first != self.window.announced or count == 0 or past > self.pages:
            due = self.window.announced
            return f"pages {message.first} to {past} of {self.pages} were announced where page {due} was due"
        if message.last != (past == self.pages):
            return "the last page is not marked as the last, or another one is"
        if wrong_digests:
            return f"digests that are not {digest_bytes} bytes long"
        if isinstance(message, Ready):
            return self._misplaced(message)
        nbytes = self._bytes(message.first, count)
        fits = message.count == count and message.nbytes == nbytes
        return None if fits else f"{message.nbytes} bytes for pages that have {nbytes}"

    def _misplaced(self, ready: Ready) -> str | None:
        count = ready.count
        if self.ctx.push:
            return "pages to be read in push mode" if ready.pages or ready.epochs or ready.buffer else None
        if len(ready.pages) != 4 * count or len(ready.epochs) != 8 * count:
            return (
                f"{len(ready.pages)} bytes of places and {len(ready.epochs)} of epochs for "
                f"{format_count(count, 'page')}"
            )
        numbers, _ = places_of(ready)
        layout = self.process.buffers.get(ready.buffer)
        if layout is None or max(numbers) >= layout.blocks:
            return "a page that is in no registered buffer"
        if layout.block_size != self.offer.page_tokens or (self.sources.places and ready.buffer != self.sources.buffer):
            return "pages of another size, or in several buffers"
        if (count > 1 and len(set(numbers)) != count) or not self.sources.seen.isdisjoint(numbers):
            return "one page for two places"
        return None

    def ready(self, ready: Ready) -> None:
        """Take an announcement of pages that can be read (or verified), found unobjectionable."""
        self.sources.add(ready, self.ctx.digest_bytes)
        self.window.announce(ready.count)
        self.pump()

    def data(self, peer: int, data: Data) -> None:
        """Take bytes that follow in push mode, found unobjectionable."""
        self.sources.digests.extend(data.digests)
        self.window.announce(data.count)
        self.window.requested = self.window.announced
        self._receive(peer, data.first, data.count)

    def answer(self, peer: int, data: Data) -> str | None:
        """Take bytes that were asked for, or word that there are none. Returns what is wrong with the header."""
        going = self.reads.get(data.first)
        if going is None:
            over = self.state is ReceiveState.STOPPING or self.is_reported
            return None if over else "bytes that were not asked for"
        if not data.epochs_ok:
            self._answered(data.first)
            self.lose("the sender no longer has the pages", final=True)
            return None
        nbytes = self._bytes(going.first, going.count)
        if data.count != going.count or data.nbytes != nbytes:
            pages = format_count(data.count, "page")
            return f"{data.nbytes} bytes for {pages}, where {nbytes} for {going.count} were asked for"
        self._answered(data.first)
        if self.state in _READING:
            self._receive(peer, going.first, going.count, going.begun)
        return None

    # Pages that are read

    def begin(self) -> None:
        """Ask for what was announced, now that blocks are known; what is held has arrived."""
        if self.is_complete:
            self._advance()
        self.pump()

    def pump(self) -> None:
        """Ask for as much as may be under way at once, and settle what can be settled."""
        window = self.window
        while (
            self.blocks is not None
            and self.state in _READING
            and len(self.copies) + len(self.reads) < self.ctx.limits.in_flight
        ):
            if window.retry:
                first, count = window.retry[0], 1
            elif window.requested < window.announced:
                first = window.requested
                count = self._alike(first, min(self.chunk, window.announced - first))
            else:
                break
            if not self._ask(first, count):
                break
            window.request(first, count)
        self.settle()

    def _ask(self, first: int, count: int) -> bool:
        ctx, offer = self.ctx, self.offer
        token = ctx.token()
        if not ctx.shared:
            return self._ask_sender(first, count)
        assert self.blocks is not None
        self.copies[token] = PagesRequested(first, count, ctx.now)
        own, where = ctx.own.cache.id, (first, count, offer.tokens, offer.page_tokens)
        if ctx.push:
            ctx.act(Copy(token, own, list(self.blocks), own, list(self.blocks), *where, digest_only=True))
            return True
        sources, cut = self.sources, self.sources.cut(first, count)
        table = [-1] * self.pages
        table[first : first + count] = sources.places[cut]
        digest_only = self.reads_in_place(first)
        ctx.ledger.mark(self._blocks_of(first, count), PageState.FILLING)
        ctx.act(Copy(token, sources.buffer, table, own, list(self.blocks), *where, sources.epochs[cut], digest_only))
        return True

    def _ask_sender(self, first: int, count: int) -> bool:
        ctx, process = self.ctx, self.process
        if process.made is None:
            return False
        self.reads[first] = PagesRequested(first, count, ctx.now)
        process.queued += self._bytes(first, count)
        ctx.deadlines.set(("read", self.ticket, first), ctx.now + process.rate.allowed(process.queued))
        ctx.send(process.made, Read(self.offer.pull_id, first, count))
        return True

    def _receive(self, peer: int, first: int, count: int, begun: float | None = None) -> None:
        ctx, offer, token = self.ctx, self.offer, self.ctx.token()
        assert self.blocks is not None
        self.copies[token] = PagesRequested(first, count, ctx.now if begun is None else begun, peer)
        ctx.deadlines.set(("bytes", token), ctx.now + self.process.rate.allowed(self._bytes(first, count)))
        ctx.ledger.mark(self._blocks_of(first, count), PageState.FILLING)
        where = (first, count, offer.tokens, offer.page_tokens)
        ctx.act(Receive(token, peer, ctx.own.cache.id, list(self.blocks), *where))

    def copied(self, token: int, digests: list[bytes] | None) -> None:
        """Take the answer to a copy, a verification or bytes received."""
        going = self.copies.pop(token)
        self.ctx.deadlines.drop(("bytes", token))
        if digests is not None:
            self.process.rate.took(self._bytes(going.first, going.count), going.begun, self.ctx.now)
        due = self.sources.digests[self.sources.cut(going.first, going.count)]
        if digests == due:
            self.window.verify(going.first, going.count)
        else:
            self._compare(going, digests, due)
        self._advance()
        self.pump()

    def _compare(self, going: PagesRequested, digests: list[bytes] | None, due: list[bytes]) -> None:
        """Verify those that were right."""
        whole = digests is not None and len(digests) == going.count
        seen: list[bytes | None] = list(digests or ()) if whole else [None] * going.count
        for page, (digest, right) in enumerate(zip(seen, due, strict=True), going.first):
            if digest == right:
                self.window.verify(page)
            else:
                self._wrong(page, digest)

    def _wrong(self, page: int, digest: bytes | None) -> None:
        """Read a page that was not what had been promised once more, then give up there."""
        ctx = self.ctx
        if digest is not None:
            ctx.counter.digest_mismatches += 1
        if (ctx.shared or not ctx.push) and self.window.fail(page):
            return
        if digest is None:
            self.lose("the pages are not there any more, or could not be read", final=True, code="gone")
        elif self.state in _READING:
            ctx.counter.poisoned += 1
            ctx.ledger.mark(self._blocks_of(page), PageState.POISONED)
            self.rejected = True
            self.lose(f"page {page} was not what the sender had promised", final=True, code="digest")

    def _advance(self) -> None:
        before, window = self.window.advance(), self.window
        if window.verified == before and not window.is_complete:
            return
        self._mark_ready(before)
        ctx, offer = self.ctx, self.offer
        if self.state in _UNTOLD and not self.ending:
            placed = self._place(before) if self.in_place else []
            tokens = min(window.verified * offer.page_tokens, offer.tokens)
            ctx.tell(Arrived(ctx.now, self.ticket, tokens, before if placed else 0, placed))
        if window.is_complete and self.state is not ReceiveState.COMPLETE:
            self.enter(ReceiveState.COMPLETE)
            count = self.pages - self.held
            ctx.counter.complete(ctx.now - self.begun, count, self.held, self._bytes(self.held, count))
            if not ctx.push and not self.placed:
                ctx.say_done(self.process, offer.pull_id, True, offer.lease_s)
        if ctx.push:
            ctx.send(self.process.came, Stored(offer.pull_id, window.verified))

    def _place(self, before: int) -> list[int]:
        """Return where the pages are that were verified in place."""
        assert self.blocks is not None
        past = before
        while past < self.window.verified and self.blocks[past] < 0:
            past += 1
        if past == before:
            return []
        self.placed += past - before
        self.ctx.counter.in_place_pages += past - before
        base = self.process.bases[self.sources.buffer]
        return [base + page for page in self.sources.places[self.sources.cut(before, past - before)]]

    def unused(self) -> None:
        """Let go of pages that no step reads any more."""
        if self.placed:
            self.placed = 0
            self.ctx.say_done(self.process, self.offer.pull_id, self.is_complete, math.inf)

    def unanswered(self) -> None:
        """Ask again on the next connection for reads, as this one has ended."""
        for going in self.reads.values():
            self.window.retry.extend(range(going.first, going.first + going.count))
        for first in list(self.reads):
            self._answered(first)

    def _answered(self, first: int) -> None:
        """Count what was asked for as come, or as not waited for any more."""
        going = self.reads.pop(first)
        self.process.queued -= self._bytes(going.first, going.count)
        self.ctx.deadlines.drop(("read", self.ticket, first))

    # Ends

    def lose(self, reason: str, *, final: bool, code: str = "lost") -> None:
        """Expect no more announcements; with `final` nothing more is read either. The caller settles."""
        if not self.end_reason and not self.is_complete:
            self.ctx.counter.failed[code] += 1
        self.end_reason = self.end_reason or reason
        if self.state in (ReceiveState.QUEUED, ReceiveState.RESERVING):
            self.enter(ReceiveState.WITHDRAWN)
        elif self.state in _READING and final:
            self.enter(ReceiveState.STOPPING)
        elif self.state is ReceiveState.RECEIVING:
            self.enter(ReceiveState.CUT_OFF)
        if final:
            self.unanswered()
            self.window.retry.clear()

    def abandon(self, reason: str, *, final: bool) -> None:
        """Take the sender's word that nothing more comes, and that it writes no more."""
        self.drained = True
        self.lose(reason, final=final, code="abandoned")

    def decline(self) -> None:
        """End it unread, as its request did without it and no blocks were given."""
        self.lose("the request did without it", final=True, code="unused")
        self.cancelled = True
        self._call_off()

    def forget(self, reason: str) -> None:
        """End it, as no request came for it, or its blocks came too late."""
        self.end_reason = self.end_reason or reason
        if self.state is not ReceiveState.WITHDRAWN:
            self.finish("forgotten")
            return
        self.enter(ReceiveState.ENDED)
        self.ctx.counter.forgotten += 1
        self.ctx.tell(Forgotten(self.ctx.now, self.ticket))

    def finish(self, ending: Ending) -> None:
        """End it, as the scheduler or the time limit wants."""
        self.ending = ending
        if self.state is ReceiveState.REPORTED:
            self.enter(ReceiveState.STOPPING)
        if not self.is_complete:
            self.lose(ending, final=True, code=ending)
        self.settle()

    def settle(self) -> None:
        """Tell the scheduler of the end when it has come."""
        if not self.ending and self._has_run_out():
            self.ending = "failed"
        if not self.ending or self.state not in _UNTOLD or self.copies:
            return
        if not self.cancelled:
            self.cancelled = True
            self._call_off()
        if not self._may_be_written():
            self._tell_end()

    def _has_run_out(self) -> bool:
        """Tell whether it is lost, and nothing of it is left to be read."""
        if self.copies or self.reads:
            return False
        if self.state is ReceiveState.CUT_OFF:
            window = self.window
            return not window.retry and window.announced <= (window.requested if self.blocks is not None else 0)
        return self.state is ReceiveState.STOPPING

    def _call_off(self) -> None:
        ctx, offer = self.ctx, self.offer
        if self.is_complete or self.placed:
            return
        if not ctx.push:
            ctx.say_done(self.process, offer.pull_id, False, offer.lease_s)
            return
        verified = self.window.verified
        why = Stored(offer.pull_id, verified, False, self.end_reason) if self.rejected else Cancel(offer.pull_id)
        ctx.send(self.process.by_came, why)
        if ctx.shared:
            ctx.deadlines.set(("drain", self.ticket), ctx.now + ctx.limits.drained)

    def cancel_again(self) -> None:
        """Call it off once more, now that the sender's process can be spoken to again."""
        if self.cancelled and self._may_be_written():
            self.ctx.send(self.process.by_came, Cancel(self.offer.pull_id))

    def _may_be_written(self) -> bool:
        return self.ctx.push and self.ctx.shared and not (self.drained or self.is_complete or self.process.dead)

    def _tell_end(self) -> None:
        ctx = self.ctx
        ctx.deadlines.drop(("drain", self.ticket))
        if self.ending == "forgotten" or self.quarantined:
            self.enter(ReceiveState.ENDED)
            ctx.counter.forgotten += 1
            ctx.tell(Forgotten(ctx.now, self.ticket))
            return
        self.enter(ReceiveState.ENDED if self.ending == "stopped" else ReceiveState.REPORTED)
        ctx.tell(Failed(ctx.now, self.ticket, self.end_reason or "the request ended"))

    def quarantine(self) -> None:
        """Give up waiting for a sender that did not stop in time, so far as is known."""
        if self.quarantined or self.is_reported or not self._may_be_written():
            return
        self.quarantined = True
        self.ctx.counter.quarantined += 1
        if self.ending != "forgotten" or self.wanted:
            self.tell_quarantined()

    def tell_quarantined(self) -> None:
        """Tell the scheduler, as a request that is here must not wait for blocks that may still be written."""
        tokens = min(self.window.verified * self.offer.page_tokens, self.offer.tokens)
        self.ctx.tell(Quarantined(self.ctx.now, self.ticket, tokens, self.end_reason))
