"""One medium of one served model, such as its pictures: from the bytes of a file to rows of its text model, decoded and
encoded in processes of their own, and kept by content.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from homenode.engine.inputs import PromptRows

T = TypeVar("T")
_DECODERS = 2  # threads that wait for processes which decode
_FILES = 16  # that are in memory together
_OF_AN_ENTRY = 1024  # bytes of an entry that is kept, besides its rows


class MediaFamily(Protocol):
    """A medium in the words of one model's prompts. `placeholder`: the token that stands for a row. `marker_token`: the
    one that a chat template writes for a picture or a sound, or its name; None: the placeholder; empty: none, as
    `written` is all that stands for a file, and a mark holds its place in the text of its message.
    """

    @property
    def placeholder(self) -> int: ...
    @property
    def marker_token(self) -> int | str | None: ...

    def written(self, layout: Any, names: Callable[[int], str], number: int) -> str:
        """Return what stands in a prompt for the file `number` of it, of which `layout` is told by its decoder."""


class MediaDecoder(Protocol):
    """Reads hostile files, in processes that may die of them. Any thread may ask; it waits meanwhile."""

    def decode(self, data: bytes, *, alone: bool) -> Any:
        """Return what is to be encoded, with its `layout`; `alone`: the request has no other. RefusedFileError for a
        file that cannot be read or takes too much.
        """

    def close(self) -> None:
        """End the processes."""


class MediaEncoder(Protocol):
    """Computes rows, in a process of its own. Any thread may ask; it waits meanwhile."""

    def encode(self, decoded: Any, /) -> PromptRows:
        """The rows of what was decoded. UnsupportedError, HostError."""

    def close(self) -> None:
        """End the process."""


@dataclass(frozen=True)
class EncodedMedia:
    """A file that was encoded: its layout, as its family knows it, and its rows."""

    layout: Any
    rows: PromptRows


class MediaWork:
    """Decodes and encodes files off the event loop; the same file at the same time once."""

    def __init__(
        self,
        family: MediaFamily,
        decoder: MediaDecoder,
        encoder: MediaEncoder,
        cache_size: int,
    ) -> None:
        """`cache_size`: bytes of rows that are kept of files seen before."""
        self.family = family
        self._decoder, self._encoder = decoder, encoder
        self._room = cache_size
        self._kept: OrderedDict[bytes, EncodedMedia] = OrderedDict()
        self._size = 0
        self._running: dict[bytes, asyncio.Task[EncodedMedia]] = {}
        self._waiting: dict[asyncio.Task[EncodedMedia], int] = {}  # requests that wait for each
        self.files = asyncio.Semaphore(_FILES)  # around the reading of a file and its encoding
        self._decoding = ThreadPoolExecutor(_DECODERS, "homenode-decoder")
        self._encoding = ThreadPoolExecutor(1, "homenode-encoder")
        self.hits = self.misses = 0

    async def encode(self, data: bytes, *, alone: bool) -> EncodedMedia:
        """The rows of a file; `alone`: the prompt has no other of this medium. RefusedFileError for one that cannot be
        read, UnsupportedError and HostError as the encoder has them.
        """
        key = hashlib.blake2b(data, digest_size=32, person=b"alone" if alone else b"beside").digest()
        if (found := self._kept.get(key)) is not None:
            self._kept.move_to_end(key)
            self.hits += 1
            return found
        if (running := self._running.get(key)) is None:
            self.misses += 1
            running = self._running[key] = asyncio.ensure_future(self._encode(data, alone))
            running.add_done_callback(lambda done: self._done(key, done))
        self._waiting[running] = self._waiting.get(running, 0) + 1
        try:
            return await asyncio.shield(running)
        finally:
            self._leave(key, running)

    def _leave(self, key: bytes, running: asyncio.Task[EncodedMedia]) -> None:
        """One waits no more. What nobody waits for, and no thread has begun, is not begun."""
        self._waiting[running] -= 1
        if self._waiting[running]:
            return
        del self._waiting[running]
        if not running.done():
            if self._running.get(key) is running:
                del self._running[key]
            running.cancel()

    async def close(self) -> None:
        """End the processes."""
        await asyncio.to_thread(self._decoder.close)
        await asyncio.to_thread(self._encoder.close)

    async def _encode(self, data: bytes, alone: bool) -> EncodedMedia:
        decoded = await _run(self._decoding, lambda: self._decoder.decode(data, alone=alone))
        return EncodedMedia(decoded.layout, await _run(self._encoding, lambda: self._encoder.encode(decoded)))

    def _done(self, key: bytes, task: asyncio.Task[EncodedMedia]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if task.cancelled() or task.exception() is not None or key in self._kept:
            return
        self._kept[key] = task.result()
        self._size += _size_of(task.result())
        while self._size > self._room and self._kept:
            _, oldest = self._kept.popitem(last=False)
            self._size -= _size_of(oldest)


def _size_of(encoded: EncodedMedia) -> int:
    return len(encoded.rows.data) + len(encoded.rows.digests) + _OF_AN_ENTRY


async def _run(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)
