"""Digests of the bytes of files, kept from start to start, so that a model's weights are read for them once.

A digest is found by all that changes with the bytes of a file: its device, its inode, its size, and the times of its
last writing and of its last change, which no program can set. It is kept only where that holds: on file systems that
tell every change (`file_systems.tells_changes`), of a file that has been left alone for so long that the clock has
moved on since, and that did not change while it was read. Everything else is digested again at each start.

Who digests a file holds a lock of its entry, so that several engines of one server read it once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from homenode.host.discovery.file_systems import kind_of, tells_changes
from homenode.user_cache import own_cache_folder

_FOLDER = "content-digests"
_MAGIC = b"HNCD\x02"
_SETTLED_NS = 60_000_000_000  # dirty pages are written by then; clocks of file systems count in steps of up to 2 s
_LONGEST_WAIT_S, _BETWEEN_LOOKS_S = 600.0, 0.05
_MOST_ENTRIES, _MOST_BYTES = 256, 1 << 26
_DIGEST_BYTES = 32
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class KeptDigests:
    """Digests in a folder. `clock`: nanoseconds since 1970. Whatever is wrong with the folder or with an entry, the
    digest is computed.
    """

    def __init__(
        self,
        folder: Path | None = None,
        clock: Callable[[], int] = time.time_ns,
        tells: Callable[[Path], bool] = lambda path: tells_changes(kind_of(path)),
    ) -> None:
        """`folder`: None: that of this user. `tells`: whether no file there changes without its times."""
        self._folder, self._clock, self._tells = folder, clock, tells

    def obtain(self, path: Path, fd: int, ranges: list[tuple[int, int]], compute: Callable[[], bytes]) -> bytes:
        """Return what `compute` returns of an open file: of the bytes in these ranges (begin, size), and of nothing
        else. Raises what it raises.
        """
        before = self._state(path, fd)
        if before is None:
            return compute()
        key = hashlib.blake2b(f"{before} {ranges}".encode(), digest_size=16).hexdigest()
        with self._entry(key) as entry:
            if entry is not None and (found := _read(entry, key)) is not None:
                return found
            found = compute()
            if entry is not None and self._state(path, fd) == before:
                _write(entry, key, found)
        return found

    def _state(self, path: Path, fd: int) -> tuple[int, ...] | None:
        """All that changes with the bytes of a file; None where something may change without."""
        try:
            seen = os.fstat(fd)
            if not 0 <= seen.st_ctime_ns <= self._clock() - _SETTLED_NS or not self._tells(path):
                return None
            os.fsync(fd)  # pages that are mapped for writing are clean from now on: the next write is told
            seen = os.fstat(fd)
        except OSError:
            return None
        return seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns

    @contextlib.contextmanager
    def _entry(self, key: str) -> Iterator[int | None]:
        """The file of an entry, which is locked; None where it cannot be had."""
        entry = -1
        with contextlib.suppress(OSError, RuntimeError):  # the latter where there is no home
            folder = own_cache_folder() / _FOLDER if self._folder is None else self._folder
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _remove_oldest(folder)
            entry = os.open(folder / key, _FLAGS | os.O_CREAT, 0o600)
        try:
            yield entry if entry >= 0 and _is_ours(entry) and _lock(entry) else None
        finally:
            if entry >= 0:
                os.close(entry)


def _is_ours(entry: int) -> bool:
    seen = os.fstat(entry)
    return stat.S_ISREG(seen.st_mode) and seen.st_uid == os.geteuid() and not seen.st_mode & 0o022


def _lock(entry: int) -> bool:
    """Wait until nobody else computes the same; False: that takes too long, or nothing can be locked there."""
    ends = time.monotonic() + _LONGEST_WAIT_S
    while time.monotonic() < ends:
        try:
            fcntl.flock(entry, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(_BETWEEN_LOOKS_S)
        except OSError:
            return False
    return False


def _sum(key: str, found: bytes) -> bytes:
    return hashlib.sha256(key.encode() + found).digest()


def _read(entry: int, key: str) -> bytes | None:
    """What is kept of a key; None where nothing is, not all that was written, or what is of another."""
    with contextlib.suppress(OSError):
        kept = os.pread(entry, min(_MOST_BYTES, os.fstat(entry).st_size), 0)
        head = len(_MAGIC) + _DIGEST_BYTES
        if kept.startswith(_MAGIC) and _sum(key, kept[head:]) == kept[len(_MAGIC) : head]:
            os.utime(entry)
            return kept[head:]
    return None


def _write(entry: int, key: str, found: bytes) -> None:
    with contextlib.suppress(OSError):
        os.ftruncate(entry, 0)
        os.pwrite(entry, _MAGIC + _sum(key, found) + found, 0)


def _remove_oldest(folder: Path) -> None:
    """Keep the number of entries small: those go that were used longest ago."""
    entries = [(entry.stat(follow_symlinks=False).st_mtime, entry.path) for entry in os.scandir(folder)]
    for _, path in sorted(entries)[: max(0, len(entries) - _MOST_ENTRIES)]:
        Path(path).unlink()
