"""One hand-over at the receiver: what was announced, what was read, what proved good, how it ends; and what it will
answer, before it is asked."""

from __future__ import annotations

import math
from collections.abc import Sequence

from homenode.transfer.scheduler_events import Arrived
from homenode.transfer.state.incoming_said import IncomingSaid
from homenode.transfer.state.machine import Copy, Expecting, Foreseen, Send, Tell
from homenode.transfer.wire.message import Done, Places, Ready, places_of

_MOST_EXPECTED = 256  # pages in one announcement over a lane; more come as a frame, or are taken as if they did


class ReceiveSession(IncomingSaid):
    """What is here changes nothing."""

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

    def foresee_unused(self) -> Foreseen | None:
        """What `unused` will lead to."""
        done = self._done_foreseen(self.complete, math.inf) if self.placed else None
        return None if done is None else Foreseen((), lambda _: [done])

    def expecting(self) -> Expecting | None:
        """The next pages, where they can be taken as soon as they are announced; see `machine.Expecting`."""
        state, process, first, blocks = self.with_, self.process, self.told, self.blocks
        size, own = self.offer.page_tokens, state.layout.block_size
        if (
            blocks is None
            or process.came is None
            or not state.shared
            or state.push
            or size != own
            or not self._awaits(process.came, first)
        ):
            return None
        peer = process.came
        runs = self._spans(first, min(first + _MOST_EXPECTED, self.pages))[: state.limits.in_flight]
        buffers = [
            name for name, layout in process.buffers.items() if layout.block_size == size and self.buffer in (b"", name)
        ]
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

    def _told_of(
        self, buffer: bytes, begin: int, places: Sequence[int], spans: list[tuple[int, int]], now: float
    ) -> list[Send | Tell]:
        """Of pages from `begin` on that proved good: as `_advance` tells of them."""
        assert self.blocks is not None
        told: list[Send | Tell] = []
        in_place = False
        for first, count in spans:
            past, at = first + count, first - begin
            placed: list[int] = []
            if self.in_place and self.blocks[first] < 0:
                base = self.process.bases[buffer]
                placed, in_place = [base + page for page in places[at : at + count]], True
            tokens = min(past * self.offer.page_tokens, self.offer.tokens)
            told.append(Tell(Arrived(now, self.ticket, tokens, first if placed else 0, placed)))
        if past == self.pages and not self.placed and not in_place:
            done = self._done_foreseen(True, self.offer.lease_s)
            told += [done] if done is not None else []
        return told

    def _done_foreseen(self, ok: bool, lease: float) -> Send | None:
        peer = self.process.by_made
        if peer is None or self.process.dead or (self.process.banned and lease < math.inf):
            return None
        return Send(peer, Done(self.offer.pull_id, ok))
