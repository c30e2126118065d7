"""Pages in and out, for a machine: copied or digested, sent from blocks, received into them. Tells the machine when it
is done. For one thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import msgspec

from homenode.errors import HomenodeError, InternalError, PeerError
from homenode.transfer.buffers import Buffers
from homenode.transfer.carriers.carrier import Chunk, LocalBuffer
from homenode.transfer.copying import CopyJob, CopyThread
from homenode.transfer.kv.pages import page_bytes
from homenode.transfer.links import Links
from homenode.transfer.machine import Copied, Copy, Input, Receive, SendPages, Sent
from homenode.transfer.staging import StagingMemory, block_views
from homenode.transfer.wire.message import Data
from homenode.transfer.wire.payload import PagesReader, PayloadReader


class PageIO:
    """Performs `Copy`, `Receive` and `SendPages`."""

    def __init__(
        self,
        buffers: Buffers,
        copies: CopyThread,
        staging: StagingMemory,
        feed: Callable[[Input], None],
        clock: Callable[[], float],
    ) -> None:
        self.links: Links  # made later
        self.bytes_copied = self.bytes_digested = 0
        self.copy_seconds = 0.0
        self._buffers, self._copies, self._staging = buffers, copies, staging
        self._feed, self._clock = feed, clock
        self._layout = next(iter(buffers.local.values())).buffer.layout
        self._receipts: dict[int, CopyJob] = {}  # what is to be done when a payload is there
        self._fitting = False  # the header just taken has a Receive
        self._header: tuple[int, Data] | None = None

    # Copies

    def copy(self, action: Copy) -> None:
        """Answered with `Copied`."""
        job = self._job(action, self._clock())
        if job is None:
            self._feed(Copied(action.token, None, "the peer's memory is not in reach any more"))
        else:
            self._submit(job)

    def copy_at_once(self, copy: Copy, now: float) -> list[bytes] | None:
        """The digests. None if it is too large for that, or came to nothing: it is then asked for again."""
        nbytes = copy.pages * self._layout.block_bytes
        if not self._copies.takes_at_once(nbytes):
            return None
        source = self._buffers.borrow(copy.source, now)
        target = None if copy.digest_only or source is None else self._buffers.borrow(copy.target, now)
        begun, digests = time.perf_counter(), None
        if source is not None and (target is not None or copy.digest_only):
            digests = self._copies.at_once(source, target, chunk_of(copy))
        self.copy_seconds += time.perf_counter() - begun
        for buffer_id, found in ((copy.source, source), (copy.target, target)):
            if found is not None:
                self._buffers.give_back(buffer_id, now)
        if digests is not None:
            self._count(nbytes, copied=target is not None)
        return digests

    def _job(self, action: Copy, now: float) -> CopyJob | None:
        """None when memory is not in reach any more; else it is borrowed."""
        source = self._buffers.borrow(action.source, now)
        target = None if action.digest_only else self._buffers.borrow(action.target, now)
        borrowed = [action.source] if action.digest_only else [action.source, action.target]
        if source is None or (target is None and not action.digest_only):
            for buffer_id, found in zip(borrowed, (source, target), strict=False):
                if found is not None:
                    self._buffers.give_back(buffer_id, now)
            return None
        layout = source.memory.layout if isinstance(source, LocalBuffer) else source.layout
        return CopyJob(action.token, source, target, chunk_of(action), page_bytes(layout, action.page_tokens), borrowed)

    def _submit(self, job: CopyJob) -> None:
        done = self._copies.submit(job)
        if done is not None:
            self._finished(*done)

    def collect(self) -> None:
        """What the copy thread has done."""
        for job, copied in self._copies.results():
            self._finished(job, copied)

    def _finished(self, job: CopyJob, copied: Copied) -> None:
        now = self._clock()
        for buffer_id in job.borrowed:
            self._buffers.give_back(buffer_id, now)
        self.copy_seconds += job.seconds
        if copied.digests is not None:
            self._count(job.nbytes, copied=job.target is not None)
        self._feed(copied)

    def _count(self, nbytes: int, *, copied: bool) -> None:
        if copied:
            self.bytes_copied += nbytes
        else:
            self.bytes_digested += nbytes

    def release(self, peer: int, reason: str) -> None:
        """Nothing of this connection's memory is copied any more."""
        for buffer_id in self._buffers.release(peer):
            self._copies.stop_using(buffer_id, reason)

    # Over the connection

    def header(self, peer: int, header: Data, tell: Callable[[], None]) -> bool:
        """`tell` the machine of a header, which `receive` may answer. Whether it did; else the bytes that follow are
        not wanted."""
        self._header, self._fitting = (peer, header), False
        tell()
        self._header = None
        return self._fitting

    def receive(self, action: Receive) -> None:
        """Answered with `Copied`."""
        if self._header is None or self._header[0] != action.peer or self._fitting:
            raise InternalError("the transfer machine wants to receive where no data is due")
        _, header = self._header
        local = self._buffers.local[action.target]
        connection = self.links.find(action.peer)
        wanted = page_span_nbytes(action, local)
        try:
            if connection is None or header.nbytes != wanted:
                raise PeerError(f"{header.nbytes} bytes were announced where {wanted} belong")
            pages = self._staging.receiver(action, local) if connection.bare else None
            if pages is not None:
                connection.accept_pages(pages, action.token)
            else:
                views, self._receipts[action.token] = self._staging.plan(action, local)
                connection.accept_payload(views, action.token)
        except HomenodeError as error:
            self._feed(Copied(action.token, None, error.message))
            return
        self._fitting = True

    def received(self, incoming: PayloadReader | PagesReader) -> None:
        """A payload is there."""
        if isinstance(incoming, PagesReader):
            self._feed(Copied(incoming.token, incoming.digests()))
        elif incoming.token is not None:
            self._submit(self._receipts.pop(incoming.token))

    def drop_receipt(self, token: int, reason: str) -> None:
        """A payload will not be there."""
        self._receipts.pop(token, None)
        self._feed(Copied(token, None, reason))

    def send(self, action: SendPages) -> None:
        """Answered with `Sent`."""
        connection = self.links.find(action.peer)
        if connection is None:
            self._feed(Sent(action.token, False))
            return
        memory = self._buffers.local[action.buffer].memory
        sizes = Counter(action.tokens)  # all alike but perhaps the last
        nbytes = sum(page_bytes(memory.layout, tokens) * pages for tokens, pages in sizes.items())
        header = msgspec.structs.replace(action.header, nbytes=nbytes)
        pages = self._staging.sender(memory, action.table, action.tokens) if connection.bare else None
        if pages is not None:
            self.links.send_pages(connection, header, pages, action.token, self._clock())
        else:
            views = block_views(memory, action.table, action.tokens)
            self.links.send_payload(connection, header, views, action.token, self._clock())


def chunk_of(action: Copy) -> Chunk:
    """The pages, without whose they are."""
    where = (action.first_page, action.pages, action.tokens, action.page_tokens)
    return Chunk(action.source_table, action.target_table, *where, action.epochs)


def page_span_nbytes(action: Receive, local: LocalBuffer) -> int:
    """Bytes of the pages to be received."""
    layout, past = local.memory.layout, action.first_page + action.pages
    last = min(action.page_tokens, action.tokens - (past - 1) * action.page_tokens)
    return (action.pages - 1) * page_bytes(layout, action.page_tokens) + page_bytes(layout, last)
