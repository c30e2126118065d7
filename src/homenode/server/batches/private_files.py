"""Files of a folder that only its owner may read, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from homenode.errors import UserError

_FILE, _FOLDER = 0o600, 0o700


def make_folder(path: Path) -> None:
    """Make a folder for its owner alone, where there is none. Raises UserError where that cannot be."""
    try:
        path.mkdir(mode=_FOLDER, exist_ok=True)
    except OSError as error:
        raise UserError(f"--batch-dir: {path} cannot be made: {error.strerror}", param="batch_dir") from None


def open_private(path: Path, *, append: bool = False) -> int:
    """Open a file to be written, which its owner alone may read; a descriptor. A link is not followed."""
    how = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    return os.open(path, how, _FILE)


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file: who reads it sees what it was before, or all of `data`."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with os.fdopen(open_private(part), "wb") as file:
        file.write(data)
    part.replace(path)
