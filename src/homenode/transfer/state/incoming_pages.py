"""The pages of one hand-over at the receiver: which were announced, asked for, verified; where they go, and how much
they are."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal

from homenode.transfer.state.ledger import PageState
from homenode.transfer.state.pages import chunk_pages, first_target, page_count, span_bytes
from homenode.transfer.state.peers import PeerProcess
from homenode.transfer.state.receiver_context import ReceiverContext
from homenode.transfer.wire.message import Offer

# Waits for room; the scheduler was asked for blocks; the sender was answered.
Stage = Literal["queued", "asked", "open"]
Ending = Literal["", "failed", "stopped", "forgotten"]  # what the scheduler is told once nobody writes any more


@dataclass
class PagesRequested:
    """Pages under way; `peer`: from where their bytes come."""

    first: int
    count: int
    begun: float
    peer: int = -1


@dataclass
class IncomingPages:
    """Pages before `told` were announced, for those before `asked` (less `again`) bytes were asked for, those before
    `verified` are in place."""

    with_: ReceiverContext
    process: PeerProcess
    offer: Offer
    begun: float
    stage: Stage = "queued"
    blocks: list[int] | None = None
    held: int = 0
    told: int = 0
    asked: int = 0
    verified: int = 0
    in_place: bool = False  # full pages may be read where they are
    placed: int = (
        0  # pages that are: until the scheduler says `Unused` the sender must keep them, however the ticket ended
    )
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
    copies: dict[int, PagesRequested] = field(default_factory=dict)
    reads: dict[int, PagesRequested] = field(default_factory=dict)  # by first page
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
        limits = self.with_.limits
        self.chunk = chunk_pages(
            self.with_.layout, self.offer.page_tokens, limits.chunk if self.with_.shared else limits.read
        )
        self.good = bytearray(b"\1" * held + b"\0" * (self.pages - held))
        self.asked = held
        if not self.with_.delay:
            self.told = self.first_told = held
        self.with_.ledger.lend(self.ticket, [block for block in blocks[first:] if block >= 0], PageState.RESERVED)
        return True

    # Arithmetic

    def _spans(self, first: int, past: int) -> list[tuple[int, int]]:
        """As these pages will be read: the first, and how many, of each run."""
        spans, at = [], first
        while at < past:
            count = self._alike(at, min(self.chunk, past - at))
            spans.append((at, count))
            at += count
        return spans

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
        return [
            block
            for block in self.blocks[first * self.offer.page_tokens // size : page_count(past, size)]
            if block >= 0
        ]

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
