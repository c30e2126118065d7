"""Files that clients have sent, and those that batches made: the bytes, and what is told of them."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import msgspec
from msgspec import Struct

from homenode.server.batches.private_files import make_folder, open_private, write_whole

FilePurpose = Literal["batch", "batch_output"]
_ID = re.compile(r"file-[0-9a-f]{24}")


class StoredFile(Struct, kw_only=True):
    """A file. `key`: the name of the API key that it belongs to; to others it is not there."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: FilePurpose
    status: Literal["processed"] = "processed"
    key: str = ""


class FileStore:
    """The files below a folder, each as two: what is told of it, and its bytes."""

    def __init__(self, folder: Path) -> None:
        """Raises UserError where the folder cannot be made."""
        self._folder = folder
        make_folder(folder)

    @contextmanager
    def write(self, purpose: FilePurpose, filename: str, key: str) -> Iterator[tuple[IO[bytes], StoredFile]]:
        """A new file to write to. It is there, with the size that it has then, when the context ends without an
        error.
        """
        id = f"file-{secrets.token_hex(12)}"
        told = StoredFile(
            id=id, bytes=0, created_at=int(time.time()), filename=filename[:256], purpose=purpose, key=key
        )
        try:
            with os.fdopen(open_private(self._data(id)), "wb") as file:
                yield file, told
                told.bytes = file.tell()
            write_whole(self._told(id), msgspec.json.encode(told))
        except BaseException:
            self._data(id).unlink(missing_ok=True)
            raise

    def find(self, id: str, key: str) -> StoredFile | None:
        """The file of this id that belongs to this key."""
        told = self._read(self._told(id)) if _ID.fullmatch(id) else None
        return told if told is not None and told.key == key else None

    def all_of(self, key: str) -> list[StoredFile]:
        """All files of a key, the newest first."""
        found = (self._read(path) for path in self._folder.glob("file-*.json"))
        mine = [told for told in found if told is not None and told.key == key]
        return sorted(mine, key=lambda told: (told.created_at, told.id), reverse=True)

    def open(self, id: str) -> IO[bytes]:
        """The bytes of a file that `find` has found. Raises OSError."""
        return os.fdopen(os.open(self._data(id), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb")

    def remove(self, id: str) -> None:
        """Remove a file that `find` has found."""
        self._told(id).unlink(missing_ok=True)
        self._data(id).unlink(missing_ok=True)

    def _told(self, id: str) -> Path:
        return self._folder / f"{id}.json"

    def _data(self, id: str) -> Path:
        return self._folder / f"{id}.data"

    @staticmethod
    def _read(path: Path) -> StoredFile | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=StoredFile)
        except (OSError, msgspec.DecodeError):
            return None
