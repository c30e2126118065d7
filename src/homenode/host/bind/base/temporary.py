"""Folders for temporary files, also where the root file system is read-only: then /dev/shm is often the only one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from homenode.errors import HostError
from homenode.host.refused_errors import REFUSALS

_VARIABLES = ("TMPDIR", "TEMP", "TMP")  # as Python's tempfile reads them
_USUAL = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))


def temporary_folders(env: Mapping[str, str] | None = None) -> Iterator[Path]:
    """Yield those that this process may write to, the preferred one first; never the working directory, which is
    another for the next command.
    """
    env = os.environ if env is None else env
    named = (Path(env[name]) for name in _VARIABLES if env.get(name))
    for folder in (*named, *_USUAL):
        if folder.is_absolute() and os.access(folder, os.W_OK | os.X_OK) and folder.is_dir():
            yield folder


def temporary_folder() -> Path:
    """The preferred one. Raises HostError where there is none."""
    for folder in temporary_folders():
        return folder
    usual = ", ".join(map(str, _USUAL))
    raise HostError(f"there is no folder for temporary files: {usual} cannot be written to. Name one in TMPDIR.")


def nameless_file(name: str) -> int:
    """The descriptor of a file that ends with its last descriptor, in memory; where the kernel or a filter refuses
    such memory (memfd_create(2)), in a folder for temporary files. HostError where there is none either."""
    try:
        return os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
    with tempfile.TemporaryFile(dir=temporary_folder()) as file:
        return os.dup(file.fileno())
