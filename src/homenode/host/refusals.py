"""What the machine refuses (a file call, memory, a thread), as errors of homenode that say what was being done."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from homenode.errors import HomenodeError, HostError

# These say something of the file or of its path. All others, such as too many open files or a failed disk, are the
# machine's.
_OF_FILES = frozenset(
    (
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENXIO,
        errno.ENODEV,
    )
)


@contextmanager
def named_refusals(doing: str, file_error: type[HomenodeError] = HostError) -> Iterator[None]:
    """Turn an OSError or a MemoryError into one sentence that begins with what was done (`doing`: "reading the model
    X").

    The error is a HostError with the `errno`; for what a file itself is the reason of, such as that it may not be read,
    it is a `file_error`.
    """
    try:
        yield
    except MemoryError as error:
        said = f" ({error})" if str(error) else ""
        raise HostError(
            f"{doing}: memory ran out{said}; free some, or lower --kv-cache-memory or --max-num-batched-tokens",
            errno=errno.ENOMEM,
        ) from error
    except OSError as error:
        kind = file_error if error.errno in _OF_FILES else HostError
        raise kind(f"{doing}: {reason_of(error)}", errno=error.errno) from error


def reason_of(error: OSError) -> str:
    """The system's words for it, with the path where it has one that the words do not name."""
    said = error.strerror or str(error)
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    return said if not path or path in said else f"{path}: {said}"


def start_thread(thread: threading.Thread) -> None:
    """Start it. HostError when the machine has no room for one more."""
    try:
        thread.start()
    except RuntimeError as error:
        raise HostError(
            f"the thread {thread.name} could not be started: {error}; see `ulimit -u` and the control group's pids.max",
            errno=errno.EAGAIN,
        ) from error
