"""Responses that are kept, in memory and in a folder: found again by their key, within the limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Raw

from homenode.server.core.response_store import (
    FolderStore,
    MemoryStore,
    ResponseStore,
    StoredResponse,
    StoreLimits,
    new_response_id,
    open_store,
)


class Clock:
    """A time that is set."""

    def __init__(self) -> None:
        self.now = 1e9

    def __call__(self) -> float:
        return self.now


Open = Callable[..., ResponseStore]


@pytest.fixture(params=["memory", "folder"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a store; all that are opened in a folder share it."""

    def begin(clock: Clock, number: int = 100, size: int = 10**6, age_s: float = 60.0) -> ResponseStore:
        limits = StoreLimits(number, size, age_s)
        if request.param == "memory":
            return MemoryStore(limits, clock)
        return FolderStore(tmp_path / "responses", limits, clock)

    return begin


def stored(text: str, key: str = "") -> StoredResponse:
    return StoredResponse(response=Raw(f'{{"text":"{text}"}}'.encode()), items=[Raw(b'{"n":1}')], key=key)


def text_of(found: StoredResponse | None) -> bytes | None:
    return None if found is None else bytes(found.response)


def test_what_is_put_is_found_by_its_key_alone(opened: Open) -> None:
    async def run() -> None:
        store, id = opened(Clock()), new_response_id()
        await store.put(id, stored("a", "ada"))
        found = await store.get(id, "ada")
        assert found == stored("a", "ada")
        assert await store.get(id, "") is None and await store.get(id, "bob") is None
        assert await store.get(new_response_id(), "ada") is None
        await store.put(id, stored("b", "ada"))
        assert text_of(await store.get(id, "ada")) == b'{"text":"b"}'
        await store.remove(id)
        await store.remove(id)
        assert await store.get(id, "ada") is None

    asyncio.run(run())


def test_the_oldest_give_way(opened: Open) -> None:
    async def run() -> None:
        clock = Clock()
        store, ids = opened(clock, number=3), [new_response_id() for _ in range(5)]
        for id in ids:
            clock.now += 1
            await store.put(id, stored(id))
        kept = [await store.get(id, "") is not None for id in ids]
        assert kept == [False, False, True, True, True]

    asyncio.run(run())


def test_all_of_them_have_a_size(opened: Open) -> None:
    async def run() -> None:
        clock = Clock()
        store, ids = opened(clock, size=3000), [new_response_id() for _ in range(4)]
        for id in ids:
            clock.now += 1
            await store.put(id, stored("x" * 1000))
        assert [await store.get(id, "") is not None for id in ids] == [False, False, True, True]
        await store.put(ids[0], stored("x" * 5000))
        assert [await store.get(id, "") for id in ids] == [None] * 4

    asyncio.run(run())


def test_none_is_kept_for_ever(opened: Open) -> None:
    async def run() -> None:
        clock = Clock()
        store, id = opened(clock), new_response_id()
        await store.put(id, stored("a"))
        clock.now += 59
        assert await store.get(id, "") is not None
        clock.now += 2
        assert await store.get(id, "") is None

    asyncio.run(run())


def test_a_store_may_keep_none(opened: Open) -> None:
    async def run() -> None:
        store, id = opened(Clock(), number=0), new_response_id()
        await store.put(id, stored("a"))
        assert await store.get(id, "") is None

    asyncio.run(run())


@pytest.mark.parametrize(
    "id", ["", ".", "..", "resp_", "../resp_" + "0" * 32, "resp_" + "0" * 31 + "/", "resp_" + "G" * 32]
)
def test_no_id_leads_out_of_the_folder(tmp_path: Path, id: str) -> None:
    async def run() -> None:
        store = FolderStore(tmp_path / "inner", StoreLimits(9, 10**6, 60.0))
        assert await store.get(id, "") is None
        with pytest.raises(ValueError, match="not an id"):
            await store.put(id, stored("a"))

    asyncio.run(run())
    assert [entry.name for entry in tmp_path.rglob("*")] == ["inner"]


def test_processes_share_a_folder(tmp_path: Path) -> None:
    async def run() -> None:
        limits = StoreLimits(9, 10**6, 60.0)
        one, other = open_store(limits, str(tmp_path)), open_store(limits, str(tmp_path))
        id = new_response_id()
        await one.put(id, stored("a"))
        assert text_of(await other.get(id, "")) == b'{"text":"a"}'
        await other.remove(id)
        assert await one.get(id, "") is None

    asyncio.run(run())
    folder = tmp_path / "responses"
    assert folder.stat().st_mode & 0o077 == 0 and not list(folder.iterdir())
    assert isinstance(open_store(StoreLimits(1, 1, 1.0), None), MemoryStore)
