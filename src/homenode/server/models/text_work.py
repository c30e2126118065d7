"""Text work of requests off the event loop, on threads of its own, with a bound of the text that is under way.

Threads take pieces of long texts in turn, so that a text of moderate size does not wait behind a very long one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from homenode.server.http.failures import ApiError

T = TypeVar("T")

SHORT_TEXT = (
    8192  # characters, which take some milliseconds: handing them to a thread and back would cost more than it saves
)
_FEW_ITEMS = 2048  # tokens or log-probabilities, each of which takes a microsecond or some
_THREADS = 2  # each may need some hundred megabytes for a text that cannot be divided
_WAIT_S = 10.0
_RETRY_AFTER_S = 5.0


class TextWork:
    """Runs what takes long. `limit`: bytes that the texts under way may take together; one alone may take any."""

    def __init__(self, limit: int, wait_s: float = _WAIT_S) -> None:
        self._limit, self._wait_s = limit, wait_s
        self._reserved = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._pool = ThreadPoolExecutor(_THREADS, "homenode-text")

    @asynccontextmanager
    async def reserve(self, size: int) -> AsyncIterator[None]:
        """Around work on texts of `size` bytes. Raises ApiError 503 when others leave none in time."""
        try:
            async with asyncio.timeout(self._wait_s):
                while self._reserved and self._reserved + size > self._limit:
                    await self._given_back()
        except TimeoutError:
            raise ApiError(
                503, "too many long texts are being worked on at once", code="overloaded", retry_after_s=_RETRY_AFTER_S
            ) from None
        self._reserved += size
        try:
            yield
        finally:
            self._reserved -= size
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)

    async def _given_back(self) -> None:
        """Returns when some room was given back."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            await waiter
        finally:
            self._waiting.remove(waiter)

    async def run(self, work: Callable[[], T], items: int | None = None) -> T:
        """The result of `work`, done on one of the threads; at once where `items` tell that it is about few tokens."""
        if items is not None and items <= _FEW_ITEMS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def each(self, items: Iterator[T]) -> AsyncGenerator[T, None]:
        """The items one by one; each is made on one of the threads."""
        while (item := await self.run(lambda: next(items, None))) is not None:
            yield item


def memory_of(text: str) -> int:
    """Bytes that a text takes in memory: up to four a character."""
    return sys.getsizeof(text)
