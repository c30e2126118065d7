"""Where bytes from a connection go: straight into KV blocks where pages are blocks, else into memory of the sender's
page size and on from there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from homenode.compute.kv_memory import KvMemory
from homenode.transfer.carriers.carrier import Chunk, KvBackend, LocalBuffer
from homenode.transfer.carriers.mapped import private_memory
from homenode.transfer.copying import CopyJob
from homenode.transfer.kv.pages import contiguous, page_bytes, tiles_of
from homenode.transfer.machine import Receive
from homenode.transfer.wire.message import Buffer
from homenode.transfer.wire.page_stream import PageReceiver, PageSender


def block_views(memory: KvMemory, blocks: Sequence[int], tokens: Sequence[int]) -> Iterator[memoryview]:
    """The bytes of blocks as they go over a wire, made as they are needed; `tokens`: how many of each block count."""
    for block, count in zip(blocks, tokens, strict=True):
        yield from memory.pieces(block, tiles_of(count))


class StagingMemory:
    """Makes room for payloads."""

    def __init__(self, backend: KvBackend) -> None:
        self._backend = backend

    def receiver(self, action: Receive, local: LocalBuffer) -> PageReceiver | None:
        """Where pages are blocks: what reads and digests them. None: see `plan`."""
        if self._backend.streams is None or not _fits(action, local):
            return None
        past = action.first_page + action.pages
        return self._backend.streams.receiver(
            local.memory, action.target_table[action.first_page : past], _tiles(_tokens(action))
        )

    def sender(self, memory: KvMemory, blocks: Sequence[int], tokens: Sequence[int]) -> PageSender | None:
        """What writes these blocks, of which so many tokens count. None: see `block_views`."""
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
    """Of each page. Pages have as many tokens as others, but for the last."""
    known = {count: tiles_of(count) for count in set(tokens)}
    return [known[count] for count in tokens]


def _fits(action: Receive, local: LocalBuffer) -> bool:
    """Whether pages are blocks, each with one place only."""
    return action.page_tokens == local.memory.layout.block_size and not local.memory.layout.has_copies


def _tokens(action: Receive) -> list[int]:
    """Of each page."""
    last = min(action.page_tokens, action.tokens - (action.first_page + action.pages - 1) * action.page_tokens)
    return [action.page_tokens] * (action.pages - 1) + [last]
