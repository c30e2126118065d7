"""The pictures of one served model: from the bytes of a file to rows of its text model, decoded and encoded in
processes of their own, and kept by content.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from homenode.engine.inputs import PromptRows
from homenode.model.pictures.family import PictureFamily, PictureLayout

if TYPE_CHECKING:
    from homenode.engine.encoder.client import Encoder
    from homenode.model.pictures.decoder import PictureDecoder

T = TypeVar("T")
_DECODERS = 2  # threads that wait for processes which decode
_FILES = 16  # of pictures that are in memory together
_OF_AN_ENTRY = 1024  # bytes of a picture that is kept, besides its rows


@dataclass(frozen=True)
class EncodedPicture:
    """A picture that was encoded: how it was cut, and its rows."""

    layout: PictureLayout
    rows: PromptRows


class PictureWork:
    """Decodes and encodes pictures off the event loop; the same picture at the same time once."""

    def __init__(self, family: PictureFamily, decoder: PictureDecoder, encoder: Encoder, cache_size: int) -> None:
        """`cache_size`: bytes of rows that are kept of pictures seen before."""
        self.family = family
        self._decoder, self._encoder = decoder, encoder
        self._room = cache_size
        self._kept: OrderedDict[bytes, EncodedPicture] = OrderedDict()
        self._size = 0
        self._running: dict[bytes, asyncio.Task[EncodedPicture]] = {}
        self._waiting: dict[asyncio.Task[EncodedPicture], int] = {}  # requests that wait for each
        self.files = asyncio.Semaphore(_FILES)  # around the reading of a file and its encoding
        self._decoding = ThreadPoolExecutor(_DECODERS, "homenode-pictures")
        self._encoding = ThreadPoolExecutor(1, "homenode-encoder")
        self.hits = self.misses = 0

    async def encode(self, data: bytes, *, alone: bool) -> EncodedPicture:
        """The rows of the picture in a file; `alone`: the prompt has no other. PictureError for what is no picture,
        UnsupportedError and HostError as the encoder has them.
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

    def _leave(self, key: bytes, running: asyncio.Task[EncodedPicture]) -> None:
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

    async def _encode(self, data: bytes, alone: bool) -> EncodedPicture:
        picture = await _run(self._decoding, lambda: self._decoder.decode(data, alone=alone))
        return EncodedPicture(picture.layout, await _run(self._encoding, lambda: self._encoder.encode(picture)))

    def _done(self, key: bytes, task: asyncio.Task[EncodedPicture]) -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if task.cancelled() or task.exception() is not None or key in self._kept:
            return
        self._kept[key] = task.result()
        self._size += _size_of(task.result())
        while self._size > self._room and self._kept:
            _, oldest = self._kept.popitem(last=False)
            self._size -= _size_of(oldest)


def _size_of(picture: EncodedPicture) -> int:
    return len(picture.rows.data) + len(picture.rows.digests) + _OF_AN_ENTRY


async def _run(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)
