"""Progress of a fetch: a line on stderr every few seconds, on a terminal always the same one, from the bytes that lie
in the cache.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from homenode.model.hub.repository import HubFile
from homenode.units import format_progress

_EVERY_S = 3.0
_EVERY_ON_TERMINAL_S = 0.25


@contextmanager
def progress_lines(repository: str, files: Sequence[HubFile], cache: Path) -> Iterator[None]:
    """While the block runs, say every few seconds how much of `files` is there, at what rate, and how long the rest
    takes; at its end once more.
    """
    blobs = cache / f"models--{repository.replace('/', '--')}" / "blobs"
    total, begin, ended = sum(file.size for file in files), time.monotonic(), threading.Event()
    first = bytes_there(blobs, files)
    on_terminal = sys.stderr.isatty()

    def watch() -> None:
        while not ended.wait(_EVERY_ON_TERMINAL_S if on_terminal else _EVERY_S):
            _say(progress_line(repository, bytes_there(blobs, files), total, first, time.monotonic() - begin))

    watching = threading.Thread(target=watch, name="fetch progress", daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join(_EVERY_S)
        whole = bytes_there(blobs, files)
        _say(progress_line(repository, whole, total, first, time.monotonic() - begin))
        if on_terminal:
            print(file=sys.stderr)


def progress_line(repository: str, done: int, total: int, first: int, seconds: float) -> str:
    """The line. `first`: bytes that were there before, `seconds`: since then."""
    return f"fetching {repository}: {format_progress(done, total, seconds, first)}"


def bytes_there(blobs: Path, files: Sequence[HubFile]) -> int:
    """Bytes of these files in the cache: of those that came whole, and of the largest piece of each other one."""
    found = 0
    for file in files:
        if file.blob:
            sizes = [_size(path) for path in (blobs / file.blob, *blobs.glob(f"{file.blob}.*incomplete"))]
            found += min(file.size, max(sizes))
    return found


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _say(line: str) -> None:
    # What is left of a longer line is erased.
    begin, end = ("\r", "\x1b[K") if sys.stderr.isatty() else ("homenode: ", "\n")
    print(f"{begin}{line}", end=end, file=sys.stderr, flush=True)
