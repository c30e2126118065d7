"""Responses that are kept, so that a conversation can go on from one of them, and be looked at.

A server of one front process keeps them in memory. Several front processes share a folder, as any of them may be asked
for what another one gave out. Both are bounded in number, bytes and age; what is over gives way, oldest first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Raw, Struct

_ID = re.compile(r"resp_[0-9a-f]{32}")
_FOLDER = "responses"
_BEING_WRITTEN = ".part"  # ends the names of files that are not whole


def new_response_id() -> str:
    """An id that nobody can guess."""
    return f"resp_{secrets.token_hex(16)}"


class StoredResponse(Struct, frozen=True, kw_only=True):
    """A response, as it was answered, and the items that it was an answer to: all of the conversation before it.

    `key`: the name of the API key that it was made with; to others it is not there.
    """

    response: Raw
    items: list[Raw]
    key: str = ""


class StoreLimits(NamedTuple):
    """`number`: responses that are kept, 0: none. `size`: bytes that they take. `age_s`: seconds for which they are."""

    number: int
    size: int
    age_s: float


class ResponseStore(Protocol):
    """Keeps responses by their ids. What is not there was never kept, was removed, or had to give way."""

    async def put(self, id: str, stored: StoredResponse) -> None:
        """Keep a response, in place of one that has this id."""

    async def get(self, id: str, key: str) -> StoredResponse | None:
        """The response of this id that was made with this key."""

    async def remove(self, id: str) -> None:
        """Keep it no longer."""

    async def touch(self, id: str) -> bool:
        """Keep it as if it was put now. False where it is not there."""

    async def age(self, id: str) -> float | None:
        """Seconds since it was put or touched; None where it is not there."""


class MemoryStore:
    """A `ResponseStore` in the memory of this process."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits, self._clock = limits, clock
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()  # oldest first
        self._size = 0

    async def put(self, id: str, stored: StoredResponse) -> None:
        """Put as `ResponseStore.put`."""
        data = msgspec.json.encode(stored)
        await self.remove(id)
        self._kept[id] = (self._clock(), data)
        self._size += len(data)
        while self._kept and (len(self._kept) > self._limits.number or self._size > self._limits.size):
            await self.remove(next(iter(self._kept)))

    async def get(self, id: str, key: str) -> StoredResponse | None:
        """Get as `ResponseStore.get`."""
        oldest_begin = self._clock() - self._limits.age_s
        while self._kept and next(iter(self._kept.values()))[0] < oldest_begin:
            await self.remove(next(iter(self._kept)))
        kept = self._kept.get(id)
        return None if kept is None else _of_key(kept[1], key)

    async def remove(self, id: str) -> None:
        """Remove as `ResponseStore.remove`."""
        if (kept := self._kept.pop(id, None)) is not None:
            self._size -= len(kept[1])

    async def touch(self, id: str) -> bool:
        """Touch as `ResponseStore.touch`."""
        if (kept := self._kept.get(id)) is None:
            return False
        self._kept[id] = (self._clock(), kept[1])
        self._kept.move_to_end(id)
        return True

    async def age(self, id: str) -> float | None:
        """Return the age as `ResponseStore.age`."""
        kept = self._kept.get(id)
        return None if kept is None else self._clock() - kept[0]


class FolderStore:
    """A `ResponseStore` in a folder that several processes share. A file for each response, written aside and
    renamed."""

    def __init__(self, folder: Path, limits: StoreLimits, clock: Callable[[], float] = time.time) -> None:
        """`folder`: made if it is not there, for nobody else to read. `clock`: as times of files are."""
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder, self._limits, self._clock = folder, limits, clock

    async def put(self, id: str, stored: StoredResponse) -> None:
        """Put as `ResponseStore.put`. Raises OSError when there is no room for it."""
        await asyncio.to_thread(self._put, self._path(id), msgspec.json.encode(stored))

    async def get(self, id: str, key: str) -> StoredResponse | None:
        """Get as `ResponseStore.get`."""
        if not _ID.fullmatch(id):  # which is the name of a file
            return None
        data = await asyncio.to_thread(self._read, self._path(id))
        return None if data is None else _of_key(data, key)

    async def remove(self, id: str) -> None:
        """Remove as `ResponseStore.remove`."""
        await asyncio.to_thread(self._path(id).unlink, True)

    async def touch(self, id: str) -> bool:
        """Touch as `ResponseStore.touch`."""
        now = self._clock()
        try:
            await asyncio.to_thread(os.utime, self._path(id), (now, now))
        except FileNotFoundError:
            return False
        return True

    async def age(self, id: str) -> float | None:
        """Return the age as `ResponseStore.age`."""
        try:
            return self._clock() - (await asyncio.to_thread(self._path(id).stat)).st_mtime
        except FileNotFoundError:
            return None

    def _path(self, id: str) -> Path:
        if not _ID.fullmatch(id):
            raise ValueError(f"not an id of a response: {id[:80]!r}")
        return self._folder / id

    def _put(self, path: Path, data: bytes) -> None:
        aside = path.with_suffix(f".{secrets.token_hex(4)}{_BEING_WRITTEN}")
        try:
            aside.write_bytes(data)
            now = self._clock()
            os.utime(aside, (now, now))
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        self._make_way()

    def _read(self, path: Path) -> bytes | None:
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            if os.fstat(file.fileno()).st_mtime >= self._clock() - self._limits.age_s:
                return file.read()
        return None

    def _make_way(self) -> None:
        """Remove the oldest files until the others are within the limits. Other processes may do so at the same
        time."""
        kept = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    kept.append((about.st_mtime, about.st_size, entry.path))
        number, size = len(kept), sum(each[1] for each in kept)
        oldest_begin = self._clock() - self._limits.age_s
        for written, of_file, path in sorted(kept):
            if number <= self._limits.number and size <= self._limits.size and written >= oldest_begin:
                return
            Path(path).unlink(missing_ok=True)
            number, size = number - 1, size - of_file


def open_store(limits: StoreLimits, shared_folder: str | None) -> ResponseStore:
    """The store of one front process. `shared_folder`: where the files of all are, None where this is the only one."""
    if shared_folder is None:
        return MemoryStore(limits)
    return FolderStore(Path(shared_folder) / _FOLDER, limits)


def _of_key(data: bytes, key: str) -> StoredResponse | None:
    stored = msgspec.json.decode(data, type=StoredResponse)
    return stored if stored.key == key else None
