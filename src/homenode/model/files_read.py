"""A record of what was read of a model's files, so that several readings, and those of several processes, can be held
to be of the same files: of each its state, and a digest of the text that it gave.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from homenode.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class FileState:
    """A file as it was: bytes, and when it was last written (nanoseconds since 1970)."""

    size: int
    modified: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Return the state of an open file, by `os.fstat`."""
        return cls(status.st_size, status.st_mtime_ns)


@dataclass
class FilesRead:
    """`states`: of every file that was opened. `digests`: of what was read of those whose text counts, in
    hexadecimal; `lengths`: its bytes, from the beginning of each file.
    """

    states: dict[Path, FileState] = field(default_factory=dict)
    digests: dict[Path, str] = field(default_factory=dict)
    lengths: dict[Path, int] = field(default_factory=dict)

    def opened(self, path: Path, status: os.stat_result) -> None:
        """The file was opened. CheckpointError where it is another one than it was before."""
        check_state(path, self.states.setdefault(path, FileState.of(status)), status)

    def took(self, path: Path, digest: str, length: int) -> None:
        """Text of this digest and so many bytes was read. CheckpointError where it was another one before."""
        if self.digests.setdefault(path, digest) != digest:
            raise replaced(path)
        self.lengths[path] = length

    @property
    def texts(self) -> dict[str, str]:
        """The digests by the paths of the files."""
        return {str(path): digest for path, digest in self.digests.items()}


_recording: ContextVar[FilesRead | None] = ContextVar("files that are read", default=None)


@contextmanager
def recorded_files(before: FilesRead | None = None) -> Iterator[FilesRead]:
    """Keep what this thread reads through `bounded_files` meanwhile, beside what whoever called keeps. `before`: what
    was read already, of which files must not have become other ones.
    """
    around, read = _recording.get(), before or FilesRead()
    token = _recording.set(read)
    try:
        yield read
    finally:
        _recording.reset(token)
    if around is not None:
        around.states |= read.states
        around.digests |= read.digests
        around.lengths |= read.lengths


def file_opened(path: Path, descriptor: int) -> None:
    """Keep that a file was opened, where that is recorded."""
    if (read := _recording.get()) is not None:
        read.opened(path, os.fstat(descriptor))


class TextDigest:
    """The digest of a text that is read piece by piece; nothing is computed where nobody records."""

    def __init__(self) -> None:
        self._read = _recording.get()
        self._digest = hashlib.sha256()  # which processors compute
        self._length = 0

    def add(self, data: bytes) -> None:
        """The next bytes."""
        if self._read is not None:
            self._digest.update(data)
            self._length += len(data)

    def keep(self, path: Path) -> None:
        """Note that those were all that is read of `path`."""
        if self._read is not None:
            self._read.took(path, self._digest.hexdigest(), self._length)


def text_taken(path: Path, data: bytes) -> None:
    """Keep that `data` is the text of a file, where that is recorded."""
    digest = TextDigest()
    digest.add(data)
    digest.keep(path)


def check_state(path: Path, before: FileState | None, status: os.stat_result) -> None:
    """CheckpointError where the open file is not the one that was there before; None: nobody has looked."""
    if before is not None and before != FileState.of(status):
        raise replaced(path)


def replaced(path: Path) -> CheckpointError:
    """The error for a file that became another one while it was read."""
    return CheckpointError(
        f"{path} was replaced or written while the model was read, so that parts of two models would be mixed; start "
        "again once all files are in place",
        path=path,
    )


def other_text(mine: Mapping[str, str], theirs: Mapping[str, str]) -> str | None:
    """The first file that two have read, by its path, with another content; None where there is none."""
    return next((name for name in sorted(mine) if name in theirs and theirs[name] != mine[name]), None)
