"""The number of requests under way, of all fronts of a server together, whichever of them is asked.

Each front of several has a file of one number in the folder that they share, and keeps it in step; who is asked adds up
those of the processes that live.
"""

from __future__ import annotations

import logging
import mmap
import os
from contextlib import suppress
from pathlib import Path

_LOG = logging.getLogger(__name__)
_PREFIX = "load_"
_WORD = 8  # bytes of a number


class RequestLoad:
    """Requests under way. `folder`: what the fronts share; None where there is one."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = None if folder is None else Path(folder)
        self._own = memoryview(bytearray(_WORD)).cast("q")
        if self._folder is not None:
            self._share(self._folder / f"{_PREFIX}{os.getpid()}")

    def _share(self, path: Path) -> None:
        """Keep the number in a file. Where there is no room only this front's own is told."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, _WORD)
                self._own = memoryview(mmap.mmap(descriptor, _WORD)).cast("q")
            finally:
                os.close(descriptor)
        except OSError as error:
            self._folder = None
            path.unlink(missing_ok=True)
            _LOG.warning("/load tells of this front only: %s: %s; make room there", path, error.strerror)

    def set(self, count: int) -> None:
        """So many are under way in this process."""
        self._own[0] = count

    def total(self) -> int:
        """Return how many are under way in all that live."""
        if self._folder is None:
            return self._own[0]
        return sum(map(_count_in, self._folder.glob(f"{_PREFIX}*")))


def forget_load(folder: Path, pid: int) -> None:
    """Remove the number of a front that has ended: its process id may be another one's from now on."""
    with suppress(OSError):
        (folder / f"{_PREFIX}{pid}").unlink()


def _count_in(path: Path) -> int:
    try:
        os.kill(int(path.name.removeprefix(_PREFIX)), 0)
        return int.from_bytes(path.read_bytes()[:_WORD], "little", signed=True)
    except (OSError, ValueError):  # a front that has ended
        return 0
