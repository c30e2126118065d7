"""One hand-over at the receiver: what was announced, what was read, what proved good, and how it ends."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from homenode.transfer.ledger import PageState
from homenode.transfer.machine import Copy, Expecting, Foreseen, Receive, Send, Tell
from homenode.transfer.message import Cancel, Data, Done, Offer, Places, Read, Ready, Stored, places_of
from homenode.transfer.pages import chunk_pages, first_target, page_count, span_bytes
from homenode.transfer.processes import Process
from homenode.transfer.receiving import Receiving
from homenode.transfer.seam import Arrived, Failed, Forgotten, Placed, Quarantined

Stage = Literal["queued", "asked", "open"]  # waits for room; the scheduler was asked for blocks; the sender was answered
_MOST_EXPECTED = 256  # pages in one announcement over a lane; more come as a frame, or are taken as if they did
Ending = Literal["", "failed", "stopped", "forgotten"]  # what the scheduler is told once nobody writes any more


@dataclass
class _Going:
    """Pages under way; `peer`: from where their bytes come."""

    first: int
    count: int
    begun: float
    peer: int = -1


@dataclass
class Incoming:
    """Pages before `told` were announced, for those before `asked` (less `again`) bytes were asked for, those before `verified` are in place."""

    with_: Receiving
    process: Process
    offer: Offer
    begun: float
    stage: Stage = "queued"
    blocks: list[int] | None = None
    held: int = 0
    told: int = 0
    asked: int = 0
    verified: int = 0
    in_place: bool = False  # full pages may be read where they are
    placed: int = 0  # pages that are: until the scheduler says `Unused` the sender must keep them, however the ticket ended
    parted: bool = False  # with the scheduler's end of it; only its pages are still read
    buffer: bytes = b""  # of the sender; its pages, and their epochs, of pages first_told, first_told + 1, ...
    places: list[int] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)  # those in places
    chunk: int = 0  # pages that are asked for at once
    digests: list[bytes] = field(default_factory=list)  # of pages first_told, first_told + 1, ...
    first_told: int = 0
    good: bytearray = field(default_factory=bytearray)
    again: deque[int] = field(default_factory=deque)
    bad: set[int] = field(default_factory=set)  # pages that were wrong once
    copies: dict[int, _Going] = field(default_factory=dict)
    reads: dict[int, _Going] = field(default_factory=dict)  # by first page
    wanted: bool = False  # the request is here
    over: str = ""  # why nothing more will be announced
    hard: bool = False  # nor is anything more to be read
    complete: bool = False
    ending: Ending = ""
    told_end: bool = False
    cancelled: bool = False
    drained: bool = False  # the sender writes no more
    rejected: bool = False
    quarantined: bool = False
    ended: bool = False

    @property
    def ticket(self) -> str:
        return self.offer.ticket

    @property
    def pages(self) -> int:
        return len(self.offer.identities)

    @property
    def reading(self) -> bool:
        """Bytes are still to come, from a sender that must keep them."""
        return self.stage == "open" and not self.complete and not self.told_end and not self.ending

    @property
    def kept(self) -> bool:
        """The sender must keep pages for it."""
        return self.reading or self.placed > 0

    @property
    def quiet(self) -> bool:
        """This engine writes nothing."""
        return not self.copies

    def place(self, blocks: list[int], held: int) -> bool:
        """Where it goes. False if that is not where it fits."""
        size = self.with_.layout.block_size
        first = min(first_target(held, self.offer.page_tokens, size), len(blocks))
        if len(blocks) < page_count(self.offer.tokens, size) or not 0 <= held <= self.pages:
            return False
        self.blocks, self.held, self.verified = list(blocks), held, held
        self.chunk = chunk_pages(self.with_.layout, self.offer.page_tokens, self.with_.limits.chunk)
        self.good = bytearray(b"\1" * held + b"\0" * (self.pages - held))
        self.asked = held
        if not self.with_.delay:
            self.told = self.first_told = held
        self.with_.ledger.lend(self.ticket, [block for block in blocks[first:] if block >= 0], PageState.RESERVED)
        return True

    # What the sender says

    def objection(self, said: Ready | Data) -> str | None:
        """What is wrong with it; None: nothing."""
        if self.stage != "open":
            return "pages of a hand-over that was not accepted"
        if isinstance(said, Ready):
            count, wrong_digests = said.count, len(said.digests) != said.count * self.with_.digest_bytes
        else:
            count, wrong_digests = len(said.digests), not {self.with_.digest_bytes}.issuperset(map(len, said.digests))
        past = said.first + count
        if said.first != self.told or count == 0 or past > self.pages:
            return f"pages {said.first} to {past} of {self.pages} were announced where page {self.told} was due"
        if said.last != (past == self.pages):
            return "the last page is not marked as the last, or another one is"
        if wrong_digests:
            return f"digests that are not {self.with_.digest_bytes} bytes long"
        if isinstance(said, Data):
            nbytes = self._bytes(said.first, count)
            return None if said.count == count and said.nbytes == nbytes else f"{said.nbytes} bytes for pages that have {nbytes}"
        return self._misplaced(said)

    def _misplaced(self, said: Ready) -> str | None:
        count = said.count
        if self.with_.push:
            return "pages to be read in push mode" if said.pages or said.epochs or said.buffer else None
        if len(said.pages) != 4 * count or len(said.epochs) != 8 * count:
            return f"{len(said.pages)} bytes of places and {len(said.epochs)} of epochs for {count} pages"
        numbers, _ = places_of(said)
        layout = self.process.buffers.get(said.buffer)
        if layout is None or max(numbers) >= layout.blocks:
            return "a page that is in no registered buffer"
        if layout.block_size != self.offer.page_tokens or (self.places and said.buffer != self.buffer):
            return "pages of another size, or in several buffers"
        if (count > 1 and len(set(numbers)) != count) or not self.seen.isdisjoint(numbers):
            return "one page for two places"
        return None

    def ready(self, said: Ready) -> None:
        """More pages can be read (or verified), found unobjectionable."""
        places, epochs = places_of(said)
        self.buffer = said.buffer
        self.places.extend(places)
        self.epochs.extend(epochs)
        self.seen.update(places)
        size = self.with_.digest_bytes
        self.digests.extend([said.digests[at : at + size] for at in range(0, len(said.digests), size)])
        self.told += said.count
        self.pump()

    def foresee(self, said: Ready, now: float) -> Foreseen | None:
        """What `ready` will lead to, where these pages can be verified, or copied, at once; see `machine.Foreseen`."""
        state, first, blocks = self.with_, said.first, self.blocks
        if blocks is None or self.over or self.ending or self.copies or self.again or not state.shared or state.push:
            return None
        if not first == self.asked == self.told == self.verified or self.objection(said) is not None:
            return None
        spans = self._spans(first, first + said.count)
        if len(spans) > state.limits.in_flight:
            return None
        places = places_of(said)

        def then(digests: list[list[bytes]]) -> list[Send | Tell] | None:
            found = b"".join([digest for each in digests for digest in each])
            return self._told_of(said.buffer, first, places[0], spans, now) if found == said.digests else None

        return Foreseen(tuple([self._foreseen_copy(said, places, *span) for span in spans]), then)

    def expecting(self) -> Expecting | None:
        """The next pages, where they can be taken as soon as they are announced; see `machine.Expecting`."""
        state, process, first, blocks = self.with_, self.process, self.told, self.blocks
        size, own = self.offer.page_tokens, state.layout.block_size
        if blocks is None or process.came is None or not state.shared or state.push or size != own or not self._awaits(process.came, first):
            return None
        peer = process.came
        runs = self._spans(first, min(first + _MOST_EXPECTED, self.pages))[: state.limits.in_flight]
        buffers = [name for name, layout in process.buffers.items() if layout.block_size == size and self.buffer in (b"", name)]
        return Expecting(
            self.ticket,
            peer,
            self.offer.pull_id,
            first,
            self.pages,
            self.offer.tokens,
            size,
            state.digest_bytes,
            blocks[first : sum(runs[-1])],
            runs,
            self.seen,
            {name: process.bases.get(name, -1) for name in buffers},
            lambda: self._awaits(peer, first),
        )

    def _awaits(self, peer: int, first: int) -> bool:
        """Whether page `first` is the next, from this peer, and nothing is under way before it."""
        if self.over or self.ending or self.copies or self.again or self.stage != "open" or self.process.banned:
            return False
        return first == self.told == self.asked == self.verified < self.pages and peer in self.process.live

    def _spans(self, first: int, past: int) -> list[tuple[int, int]]:
        """As these pages will be read: the first, and how many, of each run."""
        spans, at = [], first
        while at < past:
            count = self._alike(at, min(self.chunk, past - at))
            spans.append((at, count))
            at += count
        return spans

    def _foreseen_copy(self, said: Ready, places: Places, first: int, count: int) -> Copy:
        assert self.blocks is not None
        size, at = self.offer.page_tokens, first - said.first
        table, epochs = list(places[0][at : at + count]), list(places[1][at : at + count])
        where_it_is, cache = self.in_place and self.blocks[first] < 0, self.with_.own.cache.id
        tokens = self.offer.tokens
        if size == self.with_.layout.block_size:  # where pages are blocks only theirs are needed
            blocks, rest = self.blocks[first : first + count], min(tokens - first * size, count * size)
            return Copy(0, said.buffer, table, cache, blocks, 0, count, rest, size, epochs, where_it_is)
        table = [-1] * first + table + [-1] * (self.pages - first - count)
        return Copy(0, said.buffer, table, cache, self.blocks, first, count, tokens, size, epochs, where_it_is)

    def _told_of(self, buffer: bytes, begin: int, places: Sequence[int], spans: list[tuple[int, int]], now: float) -> list[Send | Tell]:
        """Of pages from `begin` on that proved good: as `_advance` tells of them."""
        assert self.blocks is not None
        told: list[Send | Tell] = []
        for first, count in spans:
            past = first + count
            if self.in_place and self.blocks[first] < 0:
                base, at = self.process.bases[buffer], first - begin
                told.append(Tell(Placed(now, self.ticket, first, [base + page for page in places[at : at + count]])))
            told.append(Tell(Arrived(now, self.ticket, min(past * self.offer.page_tokens, self.offer.tokens))))
        if past == self.pages and not self.placed and len(told) == len(spans):
            done = self._done_foreseen(True, self.offer.lease_s)
            told += [done] if done is not None else []
        return told

    def _done_foreseen(self, ok: bool, lease: float) -> Send | None:
        peer = self.process.by_made
        if peer is None or self.process.dead or (self.process.banned and lease < math.inf):
            return None
        return Send(peer, Done(self.offer.pull_id, ok))

    def data(self, peer: int, data: Data) -> None:
        """Push: bytes follow, found unobjectionable."""
        self.digests.extend(data.digests)
        self.told += data.count
        self.asked = self.told
        self._receive(peer, data.first, data.count)

    def answer(self, peer: int, data: Data) -> str | None:
        """Bytes that were asked for follow, or do not. Returns what is wrong with the header."""
        going = self.reads.get(data.first)
        if going is None:
            return None if self.hard or self.told_end else "bytes that were not asked for"
        if not data.epochs_ok:
            self._answered(data.first)
            self.lose("the sender no longer has the pages", hard=True)
            return None
        nbytes = self._bytes(going.first, going.count)
        if data.count != going.count or data.nbytes != nbytes:
            return f"{data.nbytes} bytes for {data.count} pages, where {nbytes} for {going.count} were asked for"
        self._answered(data.first)
        if not self.hard:
            self._receive(peer, going.first, going.count, going.begun)
        return None

    # The pipeline

    def pump(self) -> None:
        """Ask for as much as may be under way at once, and settle what can be settled."""
        while (
            self.blocks is not None
            and not self.hard
            and not self.complete
            and len(self.copies) + len(self.reads) < self.with_.limits.in_flight
        ):
            if self.again:
                first, count = self.again[0], 1
            elif self.asked < self.told:
                first, count = self.asked, self._alike(self.asked, min(self.chunk, self.told - self.asked))
            else:
                break
            if not self._ask(first, count):
                break
            if self.again:
                self.again.popleft()
            else:
                self.asked = first + count
        self.settle()

    def copied(self, token: int, digests: list[bytes] | None) -> None:
        """Answer to a copy, a verification or bytes received."""
        going = self.copies.pop(token)
        self.with_.deadlines.drop(("bytes", token))
        nbytes = self._bytes(going.first, going.count)
        if digests is not None:
            self.process.rate.took(nbytes, going.begun, self.with_.now)
        due = self.digests[going.first - self.first_told : going.first - self.first_told + going.count]
        if digests == due:
            self.good[going.first : going.first + going.count] = b"\1" * going.count
        else:
            self._compare(going, digests, due)
        self._advance()
        self.pump()

    def _compare(self, going: _Going, digests: list[bytes] | None, due: list[bytes]) -> None:
        """Not all were right."""
        seen: list[bytes | None] = list(digests) if digests is not None and len(digests) == going.count else [None] * going.count
        for page, (digest, right) in enumerate(zip(seen, due, strict=True), going.first):
            if digest == right:
                self.good[page] = 1
            else:
                self._wrong(page, digest)

    def _wrong(self, page: int, digest: bytes | None) -> None:
        """A page was not what had been promised: read it once more, then give up there."""
        if digest is not None:
            self.with_.tally.digest_mismatches += 1
        if page not in self.bad and not (self.with_.push and not self.with_.shared):
            self.bad.add(page)
            self.again.append(page)
            return
        if digest is None:
            self.lose("the pages are not there any more, or could not be read", hard=True, code="gone")
        elif not self.hard:
            self.with_.tally.poisoned += 1
            self.with_.ledger.mark(self._blocks_of(page), PageState.POISONED)
            self.rejected = True
            self.lose(f"page {page} was not what the sender had promised", hard=True, code="digest")

    def _advance(self) -> None:
        before = self.verified
        wrong = self.good.find(0, before)
        self.verified = self.pages if wrong < 0 else wrong
        if self.verified == before and self.verified < self.pages:
            return
        self._mark_ready(before)
        state, offer = self.with_, self.offer
        if not self.told_end and not self.ending:
            if self.in_place:
                self._place(before)
            state.tell(Arrived(state.now, self.ticket, min(self.verified * offer.page_tokens, offer.tokens)))
        if self.verified == self.pages and not self.complete:
            self.complete = True
            nbytes = span_bytes(state.layout, self.held, self.pages - self.held, offer.tokens, offer.page_tokens)
            state.tally.complete(state.now - self.begun, self.pages - self.held, self.held, nbytes)
            if not state.push and not self.placed:
                state.say_done(self.process, offer.pull_id, True, offer.lease_s)
        if state.push:
            state.send(self.process.came, Stored(offer.pull_id, self.verified))

    def _place(self, before: int) -> None:
        """Say where the pages are that were verified in place."""
        assert self.blocks is not None
        past = before
        while past < self.verified and self.blocks[past] < 0:
            past += 1
        if past > before:
            self.placed += past - before
            self.with_.tally.in_place_pages += past - before
            base = self.process.bases[self.buffer]
            blocks = [base + page for page in self.places[before - self.first_told : past - self.first_told]]
            self.with_.tell(Placed(self.with_.now, self.ticket, before, blocks))

    def unused(self) -> None:
        """No step reads its pages any more."""
        if self.placed:
            self.placed = 0
            self.with_.say_done(self.process, self.offer.pull_id, self.complete, math.inf)

    def foresee_unused(self) -> Foreseen | None:
        """What `unused` will lead to."""
        done = self._done_foreseen(self.complete, math.inf) if self.placed else None
        return None if done is None else Foreseen((), lambda _: [done])

    def begin(self) -> None:
        """Blocks are known: what is held has arrived; the rest is asked for as far as it was announced."""
        if self.held == self.pages:
            self._advance()
        self.pump()

    def _ask(self, first: int, count: int) -> bool:
        state, offer, token = self.with_, self.offer, self.with_.token()
        if not state.shared:
            if self.process.made is None:
                return False
            self.reads[first] = _Going(first, count, state.now)
            self.process.queued += self._bytes(first, count)
            state.deadlines.set(("read", self.ticket, first), state.now + self.process.rate.allowed(self.process.queued))
            state.send(self.process.made, Read(offer.pull_id, first, count))
            return True
        assert self.blocks is not None
        self.copies[token] = _Going(first, count, state.now)
        own = state.own.cache.id
        if state.push:
            state.act(
                Copy(token, own, list(self.blocks), own, list(self.blocks), first, count, offer.tokens, offer.page_tokens, digest_only=True)
            )
            return True
        where_it_is = self.blocks[first] < 0 if self.in_place else False
        at = first - self.first_told
        table = [-1] * self.pages
        table[first : first + count] = self.places[at : at + count]
        epochs = self.epochs[at : at + count]
        self._fill(first, count)
        state.act(
            Copy(token, self.buffer, table, own, list(self.blocks), first, count, offer.tokens, offer.page_tokens, epochs, where_it_is)
        )
        return True

    def _receive(self, peer: int, first: int, count: int, begun: float | None = None) -> None:
        state, token = self.with_, self.with_.token()
        assert self.blocks is not None
        self.copies[token] = _Going(first, count, state.now if begun is None else begun, peer)
        nbytes = self._bytes(first, count)
        state.deadlines.set(("bytes", token), state.now + self.process.rate.allowed(nbytes))
        self._fill(first, count)
        state.act(Receive(token, peer, state.own.cache.id, list(self.blocks), first, count, self.offer.tokens, self.offer.page_tokens))

    def unanswered(self) -> None:
        """The connection for reads ended: ask again on the next one."""
        self.again.extend(page for going in self.reads.values() for page in range(going.first, going.first + going.count))
        for first in list(self.reads):
            self._answered(first)

    # How it ends

    def lose(self, reason: str, *, hard: bool, code: str = "lost") -> None:
        """Nothing more will be announced; with `hard` nothing more is read either. The caller settles."""
        if not self.over and not self.complete:
            self.with_.tally.failed[code] += 1
        self.over = self.over or reason
        self.hard = self.hard or hard
        if self.hard:
            self.unanswered()
            self.again.clear()

    def let_go(self) -> None:
        """Nothing of it is wanted, and no blocks were given."""
        self.lose("the request did without it", hard=True, code="unused")
        self.cancelled = True
        self._call_off()

    def finish(self, ending: Ending) -> None:
        """The scheduler, or the time limit, wants it to end."""
        self.ending, self.told_end = ending, False
        if not self.complete:
            self.lose(ending, hard=True, code=ending)
        self.settle()

    def settle(self) -> None:
        """Tell the scheduler of the end when it has come."""
        left = self.again or (self.asked < self.told and self.blocks is not None) or (self.blocks is None and self.told > 0)
        if not self.ending and self.over and not self.complete and not self.copies and not self.reads and (self.hard or not left):
            self.ending = "failed"
        if not self.ending or self.told_end or self.ended or not self.quiet or self.stage != "open":
            return
        if not self.cancelled:
            self.cancelled = True
            self._call_off()
        if self._may_be_written():
            return
        self._tell_end()

    def _call_off(self) -> None:
        state, offer = self.with_, self.offer
        if self.complete or self.placed:
            return
        if not state.push:
            state.say_done(self.process, offer.pull_id, False, offer.lease_s)
            return
        why = Stored(offer.pull_id, self.verified, False, self.over) if self.rejected else Cancel(offer.pull_id)
        state.send(self.process.by_came, why)
        if state.shared:
            state.deadlines.set(("drain", self.ticket), state.now + state.limits.drained)

    def cancel_again(self) -> None:
        """The sender's process can be spoken to again."""
        if self.cancelled and self._may_be_written():
            self.with_.send(self.process.by_came, Cancel(self.offer.pull_id))

    def _may_be_written(self) -> bool:
        return self.with_.push and self.with_.shared and not (self.drained or self.complete or self.process.dead)

    def _tell_end(self) -> None:
        state = self.with_
        self.told_end = True
        state.deadlines.drop(("drain", self.ticket))
        if self.ending == "forgotten" or self.quarantined:
            self.ended = True
            state.tally.forgotten += 1
            state.tell(Forgotten(state.now, self.ticket))
            return
        self.ended = self.ending == "stopped"
        state.tell(Failed(state.now, self.ticket, self.over or "the request ended"))

    def not_drained(self) -> None:
        """The sender did not stop in time, so far as is known."""
        state = self.with_
        if self.quarantined or self.told_end or not self._may_be_written():
            return
        self.quarantined = True
        state.tally.quarantined += 1
        if self.ending != "forgotten" or self.wanted:
            self.tell_quarantined()

    def tell_quarantined(self) -> None:
        """A request that is here must not wait for blocks that may still be written."""
        tokens = min(self.verified * self.offer.page_tokens, self.offer.tokens)
        self.with_.tell(Quarantined(self.with_.now, self.ticket, tokens, self.over))

    # Arithmetic

    def _alike(self, first: int, count: int) -> int:
        """How many of these pages are all to be copied, or all to be read where they are."""
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
        size, tokens = self.with_.layout.block_size, self.offer.tokens
        past = min((first + count) * self.offer.page_tokens, tokens)
        return [block for block in self.blocks[first * self.offer.page_tokens // size : page_count(past, size)] if block >= 0]

    def _fill(self, first: int, count: int) -> None:
        self.with_.ledger.mark(self._blocks_of(first, count), PageState.FILLING)

    def _mark_ready(self, before: int) -> None:
        """Blocks whose positions are all verified."""
        assert self.blocks is not None
        size = self.with_.layout.block_size
        tokens = min(self.verified * self.offer.page_tokens, self.offer.tokens)
        past = page_count(tokens, size) if tokens == self.offer.tokens else tokens // size
        blocks = self.blocks[before * self.offer.page_tokens // size : past]
        self.with_.ledger.mark([block for block in blocks if block >= 0], PageState.READY)

    def _bytes(self, first: int, count: int) -> int:
        return span_bytes(self.with_.layout, first, count, self.offer.tokens, self.offer.page_tokens)

    def _answered(self, first: int) -> None:
        """What was asked for comes, or is not waited for any more."""
        going = self.reads.pop(first)
        self.process.queued -= self._bytes(going.first, going.count)
        self.with_.deadlines.drop(("read", self.ticket, first))
