"""Asking the kernel for the parts of a model's files before they are read, so that a disk has something to do while
matrices are packed.

The threads of a team read a matrix together and wait for each other before the next one, which leaves a disk idle again
and again. What lies in the page cache already is not asked for.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

Extent = tuple[Path, int, int]  # a file, an offset in it, and bytes

_AHEAD = 256 << 20  # bytes that are asked for before they are read
_BEFORE_LOADING = 1 << 30  # bytes that are asked for while an engine starts
_PIECE = 8 << 20  # bytes that are asked for at once
_PROBES = 64  # pages of the files that are looked for in the page cache
_ENDS_S = 5.0  # for the call that the thread is in


def begin_read_ahead(model: Path) -> threading.Thread | None:
    """Ask for the first gibibyte of a model's file, or of the weights in a folder, while the engine that will read them
    still starts. The thread that asks, for which nobody has to wait; None where the bytes are in the page cache, or
    cannot be asked for: loading finds out why.
    """
    try:
        files = sorted(model.glob("*.safetensors")) if model.is_dir() else [model]
        sizes = [(path, path.stat().st_size) for path in files]
        if all(_starts_in_page_cache(path, size) for path, size in sizes[:_PROBES]):
            return None
        thread = threading.Thread(target=_ask_for_beginning, args=(sizes,), name="read ahead", daemon=True)
        thread.start()
    except (OSError, RuntimeError):
        return None
    return thread


def _starts_in_page_cache(path: Path, size: int) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _in_page_cache([(fd, at, _PIECE) for at in range(0, min(size, _BEFORE_LOADING), 8 * _PIECE)])
    finally:
        os.close(fd)


def _ask_for_beginning(sizes: Sequence[tuple[Path, int]]) -> None:
    left = _BEFORE_LOADING
    for path, size in sizes:
        with suppress(OSError), path.open("rb", buffering=0) as file:
            for at in range(0, min(size, left), _PIECE):
                os.posix_fadvise(file.fileno(), at, _PIECE, os.POSIX_FADV_WILLNEED)
        left -= min(size, left)


class ReadAhead:
    """A context in which a thread asks for the extents of each tensor, in the order of the tensors. `open_file` gives
    the descriptor of a file, which stays open for as long.
    """

    def __init__(self, tensors: Sequence[Sequence[Extent]], open_file: Callable[[Path], int]) -> None:
        self._tensors = [[(open_file(path), at, size) for path, at, size in extents] for extents in tensors]
        self._changed = threading.Condition()
        self._read = 0  # tensors...
        self._read_bytes = 0  # ...and their bytes
        self._ended = False
        self._thread: threading.Thread | None = None

    def advance(self) -> None:
        """One more tensor has been read."""
        with self._changed:
            self._read_bytes += sum(size for _, _, size in self._tensors[self._read])
            self._read += 1
            self._changed.notify()

    def __enter__(self) -> ReadAhead:
        if not _in_page_cache([extent for extents in self._tensors for extent in extents]):
            thread = threading.Thread(target=self._ask, name="read ahead", daemon=True)
            with suppress(RuntimeError):  # the machine gives no thread: everything is read without it
                thread.start()
                self._thread = thread
        return self

    def __exit__(self, *unused: object) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(_ENDS_S)

    def _ask(self) -> None:
        asked = 0
        for number, extents in enumerate(self._tensors):
            for fd, begin, size in extents:
                for at in range(begin, begin + size, _PIECE):
                    piece = min(_PIECE, begin + size - at)
                    if not self._may_ask(asked):
                        return
                    asked += piece
                    if number >= self._read:
                        with suppress(OSError):  # a file that cannot be asked for is read all the same
                            os.posix_fadvise(fd, at, piece, os.POSIX_FADV_WILLNEED)

    def _may_ask(self, asked: int) -> bool:
        """Wait until so many bytes are not too far ahead. False at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or asked - self._read_bytes <= _AHEAD)
            return not self._ended


def _in_page_cache(pieces: Sequence[tuple[int, int, int]]) -> bool:
    """Return whether a sample of the pages is there. True where nobody can tell."""
    step = max(1, len(pieces) // _PROBES)
    return all(_is_cached(fd, at + size // 2) for fd, at, size in pieces[::step] if size)


def _is_cached(fd: int, at: int) -> bool:
    try:
        os.preadv(fd, [bytearray(1)], at, os.RWF_NOWAIT)
    except OSError as error:
        return error.errno != errno.EAGAIN
    return True
