"""The folder of --batch-dir: its files, its batches, and the lock of the process that runs them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection
from pathlib import Path

from homenode.errors import UserError
from homenode.server.batches.batch_store import BatchStore
from homenode.server.batches.file_store import FileStore
from homenode.server.batches.private_files import make_folder, open_private


def check_folder(folder: str) -> None:
    """Raises UserError for a folder that cannot be used; nothing is made."""
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise UserError(f"--batch-dir: {path} is no folder; give another name", param="batch_dir")
    if not path.parent.is_dir():
        raise UserError(f"--batch-dir: {path.parent} is no folder; make it first", param="batch_dir")
    if not os.access(path if path.exists() else path.parent, os.W_OK | os.X_OK):
        raise UserError(f"--batch-dir: {path} cannot be written to", param="batch_dir")


class BatchFolder:
    """What is below the folder. `paths`: those that requests of a batch may ask, which the application says."""

    def __init__(self, folder: str) -> None:
        """Raises UserError for a folder that cannot be used."""
        check_folder(folder)
        self._folder = Path(folder)
        make_folder(self._folder)
        self.files = FileStore(self._folder / "files")
        self.batches = BatchStore(self._folder / "batches")
        self.paths: Collection[str] = ()
        self._lock: int | None = None

    def take_lock(self) -> bool:
        """Become the one process that runs batches, as long as it lives; False: another one is."""
        if self._lock is None:
            descriptor = open_private(self._folder / "lock", append=True)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return False
            self._lock = descriptor
        return True

    def release_lock(self) -> None:
        """Let another process run batches."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
