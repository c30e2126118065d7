"""Files that are read again when they change, while the server goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from homenode.errors import UserError

_LOG = logging.getLogger("homenode.server")
_EVERY_S = 0.5

T = TypeVar("T")


class _FileStatus(NamedTuple):
    """The status that changes when a file is written to or replaced, links on the way to it included."""

    inode: int
    size: int
    modified_ns: int


class WatchedFiles(Generic[T]):
    """The result that `read` made of some files. `value`: at the last time that it could be read."""

    def __init__(self, paths: Sequence[str], read: Callable[[], T]) -> None:
        """Reads them. Raises UserError as `read` does."""
        self._paths, self._read = paths, read
        self._seen = self._statuses()
        self.value = read()

    async def watch(self, changed: Callable[[T], object], *, every_s: float = _EVERY_S) -> None:
        """Look again and again. `changed` is called with what was read when the files have changed and are as they
        were at the look before: who replaces several of them, or writes slowly, is not done yet. What cannot be read is
        told once, and what there was before stays.
        """
        before = self._seen
        while True:
            await asyncio.sleep(every_s)
            now = await asyncio.to_thread(self._statuses)
            if now != self._seen and now == before:
                self._seen = now
                try:
                    self.value = await asyncio.to_thread(self._read)
                except UserError as error:
                    _LOG.error("a change is not taken, and what was read before stays in force: %s", error.message)
                else:
                    _LOG.info("read again: %s", ", ".join(self._paths))
                    changed(self.value)
            before = now

    def _statuses(self) -> tuple[_FileStatus | None, ...]:
        return tuple(_status(path) for path in self._paths)


def _status(path: str) -> _FileStatus | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return _FileStatus(status.st_ino, status.st_size, status.st_mtime_ns)
