"""Pages in and out, for a machine: copied or digested, sent from blocks, received into them or into memory of the
sender's page size and on from there. Tells the machine when it is done. For one thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import msgspec

from homenode.compute.kv_memory import KvMemory
from homenode.errors import HomenodeError, InternalError, PeerError
from homenode.transfer.agent.buffers import Buffers, CopyJob, CopyThread
from homenode.transfer.carriers.carrier import Chunk, KvBackend, LocalBuffer
from homenode.transfer.carriers.sockets import private_memory
from homenode.transfer.net.links import Links
from homenode.transfer.state.machine import Copied, Copy, Input, Receive, SendPages, Sent
from homenode.transfer.state.pages import contiguous, page_bytes, tiles_of
from homenode.transfer.wire.message import Buffer, Data
from homenode.transfer.wire.stream import PageReceiver, PageSender, PagesReader, PayloadReader


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
        """Take what the copy thread has done."""
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


def block_views(memory: KvMemory, blocks: Sequence[int], tokens: Sequence[int]) -> Iterator[memoryview]:
    """The bytes of blocks as they go over a wire, made as they are needed; `tokens`: how many of each block count."""
    for block, count in zip(blocks, tokens, strict=True):
        yield from memory.pieces(block, tiles_of(count))


class StagingMemory:
    """Makes room for payloads."""

    def __init__(self, backend: KvBackend) -> None:
        self._backend = backend

    def receiver(self, action: Receive, local: LocalBuffer) -> PageReceiver | None:
        """Return what reads and digests pages, where they are blocks. None: see `plan`."""
        if self._backend.streams is None or not _fits(action, local):
            return None
        past = action.first_page + action.pages
        return self._backend.streams.receiver(
            local.memory, action.target_table[action.first_page : past], _tiles(_tokens(action))
        )

    def sender(self, memory: KvMemory, blocks: Sequence[int], tokens: Sequence[int]) -> PageSender | None:
        """Return what writes these blocks, of which so many tokens count. None: see `block_views`."""
        streams = self._backend.streams
        return None if streams is None else streams.sender(memory, blocks, _tiles(tokens))

    def plan(self, action: Receive, local: LocalBuffer) -> tuple[Iterator[memoryview], CopyJob]:
        """The views that the payload fills in order, and what is left to do when it is there: digests, or a copy that
        takes them on the way."""
        pages = range(action.first_page, action.first_page + action.pages)
        tokens = _tokens(action)
        where = (action.first_page, action.pages, action.tokens, action.page_tokens)
        page = page_bytes(local.memory.layout, action.page_tokens)
        if _fits(action, local):
            views = block_views(local.memory, action.target_table[pages.start : pages.stop], tokens)
            return views, CopyJob(action.token, local, None, Chunk(action.target_table, [], *where, None), page)
        staged = self._allocate(local, action.page_tokens, action.pages)
        table = [-1] * action.first_page + list(range(action.pages))
        views = block_views(staged.memory, range(action.pages), tokens)
        return views, CopyJob(action.token, staged, local, Chunk(table, action.target_table, *where, None), page)

    def _allocate(self, local: LocalBuffer, page_tokens: int, pages: int) -> LocalBuffer:
        """Private memory with blocks of the sender's size. HostError when there is none."""
        layout = contiguous(local.memory.layout, page_tokens, pages)
        return LocalBuffer(Buffer(bytes(16), layout), private_memory(self._backend, layout), None)


def _tiles(tokens: Sequence[int]) -> list[int]:
    """Tiles of each page. Pages have as many tokens as others, but for the last."""
    known = {count: tiles_of(count) for count in set(tokens)}
    return [known[count] for count in tokens]


def _fits(action: Receive, local: LocalBuffer) -> bool:
    """Tell whether pages are blocks, each with one place only."""
    return action.page_tokens == local.memory.layout.block_size and not local.memory.layout.has_copies


def _tokens(action: Receive) -> list[int]:
    """Tokens of each page."""
    last = min(action.page_tokens, action.tokens - (action.first_page + action.pages - 1) * action.page_tokens)
    return [action.page_tokens] * (action.pages - 1) + [last]
