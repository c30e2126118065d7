"""How far a fetch is, without a terminal: a line on stderr every few seconds, from the bytes that lie in the cache."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from homenode.model.hub.repository import HubFile
from homenode.units import format_bytes

_EVERY_S = 3.0


@contextmanager
def progress_lines(repository: str, files: Sequence[HubFile], cache: Path) -> Iterator[None]:
    """While the block runs, say every few seconds how much of `files` is there, at what rate, and how long the rest takes; at its end the whole."""
    blobs = cache / f"models--{repository.replace('/', '--')}" / "blobs"
    total, begin, ended = sum(file.size for file in files), time.monotonic(), threading.Event()
    first = bytes_there(blobs, files)

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            _say(progress_line(repository, bytes_there(blobs, files), total, first, time.monotonic() - begin))

    watching = threading.Thread(target=watch, name="fetch progress", daemon=True)
    watching.start()
    try:
        yield
        _say(progress_line(repository, total, total, first, time.monotonic() - begin))
    finally:
        ended.set()
        watching.join(_EVERY_S)


def progress_line(repository: str, done: int, total: int, first: int, seconds: float) -> str:
    """The line. `first`: bytes that were there before, `seconds`: since then."""
    rate = (done - first) / max(seconds, 1e-3)
    left = f", {(total - done) / rate:.0f} s left" if rate > 0 and done < total else ""
    return f"fetching {repository}: {format_bytes(done)} of {format_bytes(total)}, {format_bytes(int(max(rate, 0)))}/s{left}"


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
    print(f"homenode: {line}", file=sys.stderr, flush=True)
