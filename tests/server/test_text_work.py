"""Text work of many clients at once: bounded memory, waits with an end, turns; and what is done at once."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from homenode.server.http.failures import ApiError
from homenode.server.models.text_work import TextWork
from tests.server.conftest import Start
from tests.server.fakes import ByteTokenizer
from tests.waiting import PATIENCE_S


def run_in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), PATIENCE_S))

    return run


@run_in_loop
async def test_room_is_given_in_turn_and_the_wait_has_an_end() -> None:
    work, order = TextWork(100, wait_s=0.05), []
    release = asyncio.Event()

    async def take(name: str, size: int) -> None:
        async with work.reserve(size):
            order.append(name)
            await release.wait()

    first = asyncio.create_task(take("first", 80))
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as refused:
        await take("too much beside it", 30)
    assert refused.value.status == 503 and refused.value.retry_after_s
    beside, waits = asyncio.create_task(take("beside it", 20)), asyncio.create_task(take("waits", 50))
    await asyncio.sleep(0)
    assert order == ["first", "beside it"]
    release.set()
    await asyncio.gather(first, beside, waits)
    assert order == ["first", "beside it", "waits"]
    async with work.reserve(1000):  # larger than all: alone, or never
        pass


@run_in_loop
async def test_room_is_given_back_by_whoever_gives_up() -> None:
    work = TextWork(10)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            async with work.reserve(10):
                raise RuntimeError
    async with work.reserve(10):
        waiting = asyncio.create_task(work.reserve(1).__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    async with work.reserve(10):
        pass


@run_in_loop
async def test_a_short_text_does_not_wait_behind_a_long_one() -> None:
    work, done = TextWork(100), []

    def pieces(count: int) -> Iterator[int]:
        yield from range(count)

    async def encode(name: str, count: int) -> None:
        async for _ in work.each(pieces(count)):
            pass
        done.append(name)

    await asyncio.gather(encode("long", 300), encode("longer", 400), encode("longest", 500), encode("short", 2))
    assert done == ["short", "long", "longer", "longest"]


@run_in_loop
async def test_few_items_are_worked_on_at_once() -> None:
    work = TextWork(100)
    assert await work.run(lambda: asyncio.get_running_loop(), items=10) is asyncio.get_running_loop()
    with pytest.raises(RuntimeError, match="no running event loop"):
        await work.run(lambda: asyncio.get_running_loop(), items=10**6)


class WitnessTokenizer(ByteTokenizer):
    """Keeps on which threads texts were encoded."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.threads.add(threading.get_ident())
        return super().encode(text, add_special_tokens)

    def encode_pieces(self, *arguments: Any, **rest: Any) -> Iterator[list[int]]:
        yield from super().encode_pieces(*arguments, **rest)


@pytest.mark.parametrize(
    ("prompt", "is_short"),
    [("x" * 200, True), (["x" * 200] * 3, True), (["x" * 200] * 50, False), (["x" * 10] * 900, False)],
    ids=["one", "a few", "longer together", "many"],
)
def test_the_texts_of_a_request_count_together(prompt: str | list[str], is_short: bool, start: Start) -> None:
    """Short ones are encoded on the event loop, all others on threads of their own; each of these is short
    by itself.
    """
    tokenizer = WitnessTokenizer()
    server = start(tokenizer=tokenizer)
    loop: list[int] = []
    server.call(lambda: loop.append(threading.get_ident()))
    tokenizer.threads.clear()  # of what the server asked to begin with
    assert server.complete(prompt=prompt, max_tokens=1).status_code == 200
    assert (tokenizer.threads == set(loop)) == is_short
    assert is_short or not tokenizer.threads & set(loop)
