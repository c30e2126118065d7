"""Standard error that nobody waits for: what is written is queued, and a thread passes it on as fast as it is read.

A terminal that is stopped, a pipe whose reader hangs, or a disk that is full would otherwise stop whoever logs, and
with it an event loop and all its clients.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable

_LARGEST_QUEUE = 1 << 20  # bytes that wait to be read; more is dropped and counted
_CHUNK = 1 << 16  # bytes of one write
_LAST_S = 1.0  # at the end of the process, for what is still in the queue


class QueuedStream(io.TextIOBase):
    """A text stream over a descriptor. `write` never waits; what finds no room is dropped, and a line says how much
    that was.

    `write_bytes` stands in for `os.write` in tests. `form` makes a line of what the stream itself has to say.
    """

    def __init__(
        self,
        descriptor: int,
        limit: int = _LARGEST_QUEUE,
        write_bytes: Callable[[int, bytes], int] = os.write,
        form: Callable[[str], str] = lambda text: text,
    ) -> None:
        self._form = form
        self._descriptor, self._limit, self._write_bytes = descriptor, limit, write_bytes
        self._changed = threading.Condition()  # over a lock that a signal handler may take again
        self._queue: deque[bytes] = deque()
        self._unwritten_bytes = 0  # bytes that have not been written
        self._dropped = 0  # lines since that was told
        self._failing = (
            False  # the last write was refused: what was dropped is told when there is something else to write
        )
        self._process = os.getpid()
        threading.Thread(target=self._pass_on, name="homenode-log", daemon=True).start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return the encoding of what is written."""
        return "utf-8"

    def writable(self) -> bool:
        """True."""
        return True

    def fileno(self) -> int:
        """The descriptor that is written to."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether that is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, text: str, /) -> int:
        """Queue `text`, or drop it. The number of characters."""
        data = text.encode("utf-8", "backslashreplace")
        if os.getpid() != self._process:  # a forked child has no thread that would pass it on
            self._write_bytes(self._descriptor, data)
            return len(text)
        with self._changed:
            if self._unwritten_bytes + len(data) > self._limit:
                self._dropped += max(1, data.count(b"\n"))
            else:
                self._queue.append(data)
                self._unwritten_bytes += len(data)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Nothing: whoever logs calls this after each line, and is not to wait. `drain` waits."""

    def drain(self, seconds: float) -> bool:
        """Wait until everything is written, for `seconds` at most. Whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unwritten_bytes, seconds)

    def _pass_on(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or (self._dropped and not self._failing))
                data, size = self._take()
            self._write_all(data)
            with self._changed:
                self._unwritten_bytes -= size
                self._changed.notify_all()

    def _take(self) -> tuple[bytes, int]:
        """Return what to write next, many lines at a time as they may come faster than they go, and how much of it was
        queued.

        A line about what was dropped stands behind all that was queued before.
        """
        parts, size = [], 0
        while self._queue and size < _CHUNK:
            parts.append(self._queue.popleft())
            size += len(parts[-1])
        if self._dropped and not self._queue:
            told = self._form(f"homenode: {self._dropped} lines of the log were dropped here, as nobody took them")
            parts.append(f"{told}\n".encode())
            self._dropped = 0
        return b"".join(parts), size

    def _write_all(self, data: bytes) -> None:
        while data:
            try:
                data = data[self._write_bytes(self._descriptor, data) :]
            except BlockingIOError:  # another process has made the descriptor so
                poll = select.poll()
                poll.register(self._descriptor, select.POLLOUT)
                poll.poll()
            except OSError:  # a full disk, or a reader that has gone: the next lines may have better luck
                with self._changed:
                    self._dropped += data.count(b"\n")
                self._failing = True
                return
        self._failing = False


def open_standard_streams() -> None:
    """Open what of standard input, output and error is closed on /dev/null.

    The next file or socket that is opened would get the number otherwise, and what crash reports and libraries write to
    standard error would go there.
    """
    for descriptor, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            os.set_inheritable(descriptor, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115


def queue_standard_error(form: Callable[[str], str] = lambda text: text) -> None:
    """Put a queue before standard error, for everything that Python code of this process writes there. At the end what
    is queued has a second. `form` makes a line of what the queue itself has to say.

    Nothing is done where standard error has been replaced already, as by a test.
    """
    if sys.stderr is not sys.__stderr__ and sys.stderr is not None:
        return
    stream = QueuedStream(2, form=form)
    sys.stderr = stream
    atexit.register(stream.drain, _LAST_S)


def drain_standard_error() -> None:
    """Wait a second at most until what is queued is written, for who ends the process without `atexit`."""
    if isinstance(sys.stderr, QueuedStream):
        sys.stderr.drain(_LAST_S)
