"""The way to KV blocks in a folder of this host: what is wrong with it, and how much may lie there."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from homenode.engine.disk_config import DiskConfig
from homenode.engine.kv_disk.block_store import StoredModel
from homenode.engine.kv_disk.disk_store import DiskStore, folder_name
from homenode.engine.kv_disk.folder import StoreFolder
from homenode.errors import HostError, UserError
from homenode.host.discovery.file_systems import is_shared, kind_of
from homenode.units import format_bytes

_log = logging.getLogger(__name__)
_SHARE_OF_FREE, _MOST = 10, 32 << 30


class FolderConnector:
    """See `store_connectors.StoreConnector`."""

    host, encrypts = "", False
    looks_at = ("kv_disk_size", "kv_disk_key", "kv_session_ttl")

    def __init__(self, config: DiskConfig) -> None:
        self._path, self._size = str(config.kv_disk), config.kv_disk_size

    def problems(self) -> list[UserError]:
        """See `StoreConnector.problems`."""
        folder, parent = Path(self._path), Path(self._path).absolute().parent
        if folder.is_dir():
            if os.access(folder, os.R_OK | os.W_OK | os.X_OK):
                return []
            return [self._error("it cannot be written; give a folder that this user may write")]
        if os.path.lexists(folder):
            return [self._error("it is no folder; give another one")]
        if "://" in self._path:
            return [self._error("there is no such kind of store; give a folder")]
        if not parent.is_dir():
            return [self._error(f"its parent {parent} is not there, and is not made; make it, or give another one")]
        if not os.access(parent, os.W_OK | os.X_OK):
            return [self._error(f"it is not there, and {parent} cannot be written; give another one")]
        return []

    def _error(self, why: str) -> UserError:
        return UserError(f"--kv-disk {self._path}: {why}", param="kv_disk")

    def open(self, model: StoredModel) -> DiskStore:
        """See `StoreConnector.open`."""
        path = Path(self._path)
        try:
            folder = StoreFolder.make(path)
        except OSError as error:
            raise HostError(f"--kv-disk {path} cannot be used: {error.strerror}") from error
        if is_shared(kind := kind_of(path)):
            _log.warning(
                "--kv-disk %s is on %s, which other hosts may share: what they write there counts for nobody here, and "
                "reading may take longer than computing; a disk of this host is better",
                path, kind,
            )  # fmt: skip
        limit = self._limit(folder)
        return DiskStore(folder, folder_name(model.identity), model.form, model.sizes, limit, model.note)

    def _limit(self, folder: StoreFolder) -> int:
        """Bytes that may lie there."""
        free = folder.free_bytes()
        used = folder.read_usage()
        room = free + (0 if used is None else used.nbytes)
        if self._size is None:
            return min(room // _SHARE_OF_FREE, _MOST)
        if self._size > room:
            _log.warning(
                "--kv-disk-size %s is more than the %s that %s has for it: the disk will be full before",
                format_bytes(self._size), format_bytes(room), folder.path,
            )  # fmt: skip
        return self._size
