"""What a sender says about one hand-over: what is wrong with it, and what follows from it."""

from __future__ import annotations

from homenode.transfer.state.incoming_reads import IncomingReads
from homenode.transfer.wire.message import Data, Ready, places_of
from homenode.units import format_count


class IncomingSaid(IncomingReads):
    """See the module."""

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
            return (
                None
                if said.count == count and said.nbytes == nbytes
                else f"{said.nbytes} bytes for pages that have {nbytes}"
            )
        return self._misplaced(said)

    def _misplaced(self, said: Ready) -> str | None:
        count = said.count
        if self.with_.push:
            return "pages to be read in push mode" if said.pages or said.epochs or said.buffer else None
        if len(said.pages) != 4 * count or len(said.epochs) != 8 * count:
            return (
                f"{len(said.pages)} bytes of places and {len(said.epochs)} of epochs for {format_count(count, 'page')}"
            )
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
            return (
                f"{data.nbytes} bytes for {format_count(data.count, 'page')}, where {nbytes} for {going.count} "
                "were asked for"
            )
        self._answered(data.first)
        if not self.hard:
            self._receive(peer, going.first, going.count, going.begun)
        return None
