"""A folder for what fronts count, which is gone when its coordinator is; at the latest when the next one starts."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from homenode.errors import HostError
from homenode.host.bind.base.temporary import temporary_folder

_PREFIX = "homenode-metrics-"
_LOCK = "coordinator"  # locked as long as the coordinator lives
_MOST_ATTEMPTS = 100  # each is lost only to another coordinator that starts at that very moment


class MetricsFolder:
    """A folder among the temporary files that nobody else can read. `path`: where it is."""

    def __init__(self) -> None:
        """HostError when there is no room for it."""
        place = temporary_folder()
        _remove_left_ones(place)
        try:
            self.path, self._lock = _locked_folder(place)
        except OSError as error:
            raise HostError(
                f"no folder for metrics in {place}: {error.strerror}; set TMPDIR", errno=error.errno
            ) from error

    def remove(self) -> None:
        """Calling it again does nothing."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _locked_folder(place: Path) -> tuple[Path, int]:
    """A new folder in `place` and its lock, which is held. OSError: there is no room for one, or others have removed
    all that were made.
    """
    for _ in range(_MOST_ATTEMPTS):
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
        lock = _locked(path)
        if lock is not None:
            return path, lock
    raise OSError(errno.EAGAIN, f"others removed {_MOST_ATTEMPTS} folders before they were locked")


def _locked(path: Path) -> int | None:
    """The lock of a new folder. None: before it was held another coordinator took the folder for one that was left, and
    removes it.
    """
    lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(lock).st_nlink:  # whoever removes the folder holds the lock until all of it is gone
            return lock
    os.close(lock)
    return None


def _remove_left_ones(place: Path) -> None:
    """Remove those of coordinators that were killed."""
    for folder in place.glob(f"{_PREFIX}*"):
        # It is somebody else's, or was removed meanwhile, or is about to get its lock.
        with contextlib.suppress(OSError):
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
