"""A folder for what fronts count, which is gone when its coordinator is; at the latest when the next one starts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from homenode.errors import HostError

_PREFIX = "homenode-metrics-"
_LOCK = "coordinator"  # locked as long as the coordinator lives


class MetricsFolder:
    """A folder among the temporary files that nobody else can read. `path`: where it is."""

    def __init__(self) -> None:
        """HostError when there is no room for it."""
        _remove_left_ones()
        try:
            self.path, self._lock = _new()
            while not (self.path / _LOCK).exists():  # somebody who started at the same moment took it for a left one
                os.close(self._lock)
                self.path, self._lock = _new()
        except OSError as error:
            raise HostError(f"no folder for metrics in {tempfile.gettempdir()}: {error.strerror}; set TMPDIR", errno=error.errno) from error

    def remove(self) -> None:
        """Calling it again does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _new() -> tuple[Path, int]:
    """A folder, and its lock, which is held."""
    path = Path(tempfile.mkdtemp(prefix=_PREFIX))
    lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return path, lock


def _remove_left_ones() -> None:
    """Those of coordinators that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it was removed meanwhile, or is about to get its lock, or the lock is held
            if folder.lstat().st_uid != os.getuid():
                continue
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
