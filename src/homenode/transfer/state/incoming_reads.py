"""How the pages of one hand-over come to the receiver: asked for, copied or received, compared with their digests, told
of."""

from __future__ import annotations

import math

from homenode.transfer.scheduler_events import Arrived
from homenode.transfer.state.incoming_ends import IncomingEnds
from homenode.transfer.state.incoming_pages import PagesRequested
from homenode.transfer.state.ledger import PageState
from homenode.transfer.state.machine import Copy, Receive
from homenode.transfer.state.pages import span_bytes
from homenode.transfer.wire.message import Read, Stored


class IncomingReads(IncomingEnds):
    """See the module."""

    def begin(self) -> None:
        """Blocks are known: what is held has arrived; the rest is asked for as far as it was announced."""
        if self.held == self.pages:
            self._advance()
        self.pump()

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

    def _compare(self, going: PagesRequested, digests: list[bytes] | None, due: list[bytes]) -> None:
        """Not all were right."""
        seen: list[bytes | None] = (
            list(digests) if digests is not None and len(digests) == going.count else [None] * going.count
        )
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
            placed = self._place(before) if self.in_place else []
            state.tell(
                Arrived(
                    state.now,
                    self.ticket,
                    min(self.verified * offer.page_tokens, offer.tokens),
                    before if placed else 0,
                    placed,
                )
            )
        if self.verified == self.pages and not self.complete:
            self.complete = True
            nbytes = span_bytes(state.layout, self.held, self.pages - self.held, offer.tokens, offer.page_tokens)
            state.tally.complete(state.now - self.begun, self.pages - self.held, self.held, nbytes)
            if not state.push and not self.placed:
                state.say_done(self.process, offer.pull_id, True, offer.lease_s)
        if state.push:
            state.send(self.process.came, Stored(offer.pull_id, self.verified))

    def _place(self, before: int) -> list[int]:
        """Where the pages are that were verified in place."""
        assert self.blocks is not None
        past = before
        while past < self.verified and self.blocks[past] < 0:
            past += 1
        if past == before:
            return []
        self.placed += past - before
        self.with_.tally.in_place_pages += past - before
        base = self.process.bases[self.buffer]
        return [base + page for page in self.places[before - self.first_told : past - self.first_told]]

    def unused(self) -> None:
        """No step reads its pages any more."""
        if self.placed:
            self.placed = 0
            self.with_.say_done(self.process, self.offer.pull_id, self.complete, math.inf)

    def _ask(self, first: int, count: int) -> bool:
        state, offer, token = self.with_, self.offer, self.with_.token()
        if not state.shared:
            if self.process.made is None:
                return False
            self.reads[first] = PagesRequested(first, count, state.now)
            self.process.queued += self._bytes(first, count)
            state.deadlines.set(
                ("read", self.ticket, first), state.now + self.process.rate.allowed(self.process.queued)
            )
            state.send(self.process.made, Read(offer.pull_id, first, count))
            return True
        assert self.blocks is not None
        self.copies[token] = PagesRequested(first, count, state.now)
        own = state.own.cache.id
        if state.push:
            state.act(
                Copy(
                    token,
                    own,
                    list(self.blocks),
                    own,
                    list(self.blocks),
                    first,
                    count,
                    offer.tokens,
                    offer.page_tokens,
                    digest_only=True,
                )
            )
            return True
        where_it_is = self.blocks[first] < 0 if self.in_place else False
        at = first - self.first_told
        table = [-1] * self.pages
        table[first : first + count] = self.places[at : at + count]
        epochs = self.epochs[at : at + count]
        self._fill(first, count)
        state.act(
            Copy(
                token,
                self.buffer,
                table,
                own,
                list(self.blocks),
                first,
                count,
                offer.tokens,
                offer.page_tokens,
                epochs,
                where_it_is,
            )
        )
        return True

    def _receive(self, peer: int, first: int, count: int, begun: float | None = None) -> None:
        state, token = self.with_, self.with_.token()
        assert self.blocks is not None
        self.copies[token] = PagesRequested(first, count, state.now if begun is None else begun, peer)
        nbytes = self._bytes(first, count)
        state.deadlines.set(("bytes", token), state.now + self.process.rate.allowed(nbytes))
        self._fill(first, count)
        state.act(
            Receive(
                token,
                peer,
                state.own.cache.id,
                list(self.blocks),
                first,
                count,
                self.offer.tokens,
                self.offer.page_tokens,
            )
        )
