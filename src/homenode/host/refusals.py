"""Refusals of the machine (a file call, memory, a thread), as errors of homenode that say what was being done."""

from __future__ import annotations

import errno
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from homenode.errors import HomenodeError, HostError
from homenode.host.refused_errors import REFUSALS
from homenode.host.resource_limits import read_limit

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
# errno: the limit of this process that it may come from, the shell's flag, and bytes of the flag's unit.
_LIMITS = {
    errno.EFBIG: ("RLIMIT_FSIZE", "ulimit -f", 1024, " KiB"),
    errno.EMFILE: ("RLIMIT_NOFILE", "ulimit -n", 1, ""),
    errno.ENOMEM: ("RLIMIT_DATA", "ulimit -d", 1024, " KiB"),
}
_NO_ROOM_FOR_LIBRARIES = ("failed to map segment", "annot allocate memory")  # what the dynamic loader says
_THREADS = "`ulimit -u`, the control group's pids.max, and whether a filter refuses clone3 (ENOSYS is what it may say)"


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
    """The system's words for it, with the path where it has one that the words do not name, and the limit that is
    behind it."""
    said = error.strerror or str(error)
    path = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
    return with_limit(said if not path or path in said else f"{path}: {said}", error.errno)


def with_limit(said: str, code: int | None) -> str:
    """Return what was said of an error with this errno, and the limit of this process that is behind it, where one is
    set.
    """
    name, flag, unit, of_unit = _LIMITS.get(code or 0, ("", "", 1, ""))
    if code == errno.EAGAIN:
        return f"{said}; see {_THREADS}" if "pthread_create" in said or "fork" in said else said
    if code in REFUSALS and "memfd_create" in said:
        return f"{said}; allow memfd_create in the container's seccomp profile, or in the unit (SystemCallFilter=)"
    if not name or flag in said:
        return said
    soft, hard = read_limit(getattr(resource, name))
    if soft == resource.RLIM_INFINITY:
        return said
    remedy = "raise it" if soft != hard else "raise it where this is started, with its hard limit"
    return f"{said}; the limit is {flag} {soft // unit}{of_unit} ({name}), {remedy}"


def exhausted(error: BaseException) -> HostError | None:
    """An error of Python's that says that memory or threads ran out, as one that names the limit; None for others."""
    if isinstance(error, MemoryError):
        return HostError(f"{with_limit('memory ran out', errno.ENOMEM)}; free some", errno=errno.ENOMEM)
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        said = with_limit("a thread could not be started", errno.ENOMEM)
        return HostError(f"{said}; see {_THREADS}", errno=errno.EAGAIN)
    if isinstance(error, ImportError) and any(sign in str(error) for sign in _NO_ROOM_FOR_LIBRARIES):
        return HostError(with_limit(f"a library could not be loaded: {error}", errno.ENOMEM), errno=errno.ENOMEM)
    return None


def start_thread(thread: threading.Thread) -> None:
    """Start it. HostError when the machine has no room for one more."""
    try:
        thread.start()
    except RuntimeError as error:
        raise HostError(
            f"the thread {thread.name} could not be started: {error}; see {_THREADS}",
            errno=errno.EAGAIN,
        ) from error
