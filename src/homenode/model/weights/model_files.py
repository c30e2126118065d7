"""The files of a model's weights while they are loaded: each is opened once, is the one whose header was read, and is
still there and as it was when all of it was read.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from homenode.errors import CheckpointError
from homenode.host.refusals import named_refusals
from homenode.model.files_read import FileState, check_state, file_opened, replaced


class ModelFiles:
    """Each file, opened once, closed together with this. What is read through a descriptor is of one file whatever
    becomes of its name; `check` says whether that held for those who read by name, and for what was written in place.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._fds: dict[Path, int] = {}
        self._states: dict[Path, FileState] = {}

    def __enter__(self) -> ModelFiles:
        return self

    def __exit__(self, *unused: object) -> None:
        self._stack.close()

    def open(self, path: Path) -> int:
        """A descriptor of `path` to read from; CheckpointError when it cannot be opened, or is not the file any more
        whose header was read.
        """
        if path not in self._fds:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise CheckpointError(
                    f"{path} cannot be opened: {error.strerror}; it was there when the model was looked at"
                ) from error
            self._stack.callback(os.close, fd)
            with named_refusals(f"reading {path}", CheckpointError):
                file_opened(path, fd)
                self._fds[path], self._states[path] = fd, FileState.of(os.fstat(fd))
        return self._fds[path]

    def check(self) -> None:
        """CheckpointError when a file was written since it was opened, or another one bears its name by now."""
        for path, fd in self._fds.items():
            with named_refusals(f"looking at {path} once more", CheckpointError):
                opened = os.fstat(fd)
            check_state(path, self._states[path], opened)
            try:
                named = path.stat()
            except OSError:
                continue  # it is gone, and nothing is in its place: what was read is what this descriptor gave
            if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
                raise replaced(path)
