"""One hand-over at the sender, from the moment the receiver has taken it: what is said about it, and what it will
announce, before it is asked."""

from __future__ import annotations

from itertools import pairwise

from homenode.transfer.scheduler_events import Computed
from homenode.transfer.state.ledger import PageState
from homenode.transfer.state.machine import Announcing, Copy, Foreseen, Send, Tell
from homenode.transfer.state.outgoing_copies import MOST_AT_ONCE, OutgoingCopies
from homenode.transfer.state.pages import first_target, page_count
from homenode.transfer.wire.message import Data, OfferReply, Read, ready


class SendSession(OutgoingCopies):
    """See the module."""

    # By the receiver, and this engine's scheduler

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
        wanted = page_count(self.tokens, layout.block_size) - first_target(
            held, self.with_.page_tokens, layout.block_size
        )
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
                first_target(self.held, self.with_.page_tokens, self.process.buffers[self.target].block_size)
                if self.with_.shared
                else 0
            )
            self.targets = [-1] * skipped + [target.page for target in reply.targets]
        self.with_.admission.keep(self.ticket, self.pages - self.held)

    def add(self, first: int, blocks: list[int], last: bool) -> None:
        """Pages were computed."""
        new = blocks[self.computed - first :] if first <= self.computed else None
        if (
            new is None
            or first + len(blocks) > self.pages
            or (last and first + len(blocks) < self.pages and not self.over)
        ):
            self.call_off("internal", f"pages from {first} on were computed, {self.computed} are known of {self.pages}")
        elif not self.over and not self.read:
            self.table[self.computed : self.computed + len(new)] = new
            self.computed += len(new)
            if self.with_.pool is None:
                self.with_.ledger.lend(self.ticket, new, PageState.READY)
            self.with_.leases.grant(self.pull_id, self.with_.now)
        self.computing = self.computing and not last
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

    # Ahead; nothing is changed here

    def announcing(self) -> Announcing | None:
        """Whether the next pages can be announced as soon as they were computed; see `machine.Announcing`."""
        state, first, process = self.with_, self.told, self.process
        peer = process.made if process is not None else None
        if peer is None or not state.shared or state.push or state.pool is not None or not self._is_next(peer, first):
            return None
        most, left = min(state.chunk, MOST_AT_ONCE), self.tokens - first * state.page_tokens
        return Announcing(
            self.ticket, peer, self.pull_id, first, self.pages, most, left, lambda: self._is_next(peer, first)
        )

    def _is_next(self, peer: int, first: int) -> bool:
        """Whether page `first` is the next to be computed, and nothing is under way before it."""
        if (
            self.copies
            or self.over
            or self.read
            or self.process is None
            or self.process.made != peer
            or self.process.banned
        ):
            return False
        return first == self.told == self.computed < self.pages

    def foresee(self, computed: Computed) -> Foreseen | None:
        """What `add` will lead to, where these pages can be announced as soon as their digests are known; see
        `machine.Foreseen`."""
        next_ = self.announcing()
        state, first, count, size, blocks = (
            self.with_,
            computed.first,
            len(computed.blocks),
            self.with_.page_tokens,
            computed.blocks,
        )
        if (
            next_ is None
            or first != next_.first
            or not 0 < count <= next_.most
            or computed.last != (first + count == self.pages)
        ):
            return None
        peer, tokens = next_.peer, min(next_.tokens, count * size)
        if first + count > self.pages:
            return None
        copy = Copy(0, state.own.cache.id, blocks, state.own.cache.id, [], 0, count, tokens, size, digest_only=True)

        def then(digests: list[list[bytes]]) -> list[Send | Tell] | None:
            return [
                Send(
                    peer,
                    ready(
                        self.pull_id,
                        first,
                        digests[0],
                        computed.last,
                        state.buffer,
                        (blocks, state.ledger.epochs(blocks)),
                    ),
                )
            ]

        return Foreseen((copy,), then)


def _leading(indexes: list[int]) -> int:
    """How many pages from the first on are among them."""
    return next((i for i, index in enumerate(indexes) if index != i), len(indexes))
