"""How the pages of one hand-over leave the sender: digested or copied, then announced or sent."""

from __future__ import annotations

from homenode.transfer.state.ledger import PageState
from homenode.transfer.state.machine import Copy, SendPages
from homenode.transfer.state.outgoing_pages import OutgoingPages, PagesInFlight
from homenode.transfer.state.pages import tokens_in
from homenode.transfer.wire.message import Data, Ready, ready

MOST_AT_ONCE = 4096  # pages in one Ready


class OutgoingCopies(OutgoingPages):
    """See the module."""

    def pump(self) -> None:
        """Keep the copy thread at work, and settle what can be settled."""
        while (
            not self.over
            and not self.read
            and self.asked < self.computed
            and len(self.copies) + (len(self.sends) if self.with_.push else 0)
            < self.with_.limits.in_flight  # a reader waits for digests
        ):
            # The first ones soon, then fewer and larger.
            begun = max(self.with_.chunk, min(self.asked - self.held, self.with_.most))
            self._copy(self.asked, min(begun, self.computed - self.asked))
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

    def _copy(self, first: int, count: int) -> None:
        token, state = self.with_.token(), self.with_
        self.asked = first + count
        self.copies[token] = PagesInFlight(first, count, state.now)
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
            first, past = self.told, min(self.told + MOST_AT_ONCE, self.pages)
            if None in self.digests[first:past]:
                past = self.digests.index(None, first)
            peer = self.process.made if self.process is not None else None
            if peer is None:
                return
            self.told = past
            if self.with_.push and not self.with_.shared:
                for at in range(first, past, self.with_.most):
                    self._send_pages(peer, at, min(self.with_.most, past - at))
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
        tokens = [state.page_tokens] * (count - 1) + [tokens_in(first + count - 1, self.tokens, state.page_tokens)]
        self.sends[token] = PagesInFlight(first, count, state.now)
        assert self.process is not None
        self.process.queued += nbytes
        state.deadlines.set(("send", token), state.now + self.process.rate.allowed(self.process.queued))
        state.act(SendPages(token, peer, header, state.buffer, blocks, tokens))
