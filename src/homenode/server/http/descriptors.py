"""The number of files and sockets that this process may have open at a time, and how many of these are kept for other
things than clients.
"""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path

from homenode.host.resource_limits import read_limit, set_limit

_SMALLEST_RESERVE, _LARGEST_RESERVE = 16, 256
_UNKNOWN_IN_USE = 64


def raise_descriptor_limit() -> None:
    """Raise the soft limit to the hard one, for this process and those it starts: every connection is a descriptor, and
    1,024 are usual.
    """
    hard = read_limit(resource.RLIMIT_NOFILE)[1]
    with contextlib.suppress(ValueError, OSError):
        set_limit(resource.RLIMIT_NOFILE, hard, hard)


def descriptor_limit() -> int:
    """The soft limit: numbers of descriptors are below it."""
    soft = read_limit(resource.RLIMIT_NOFILE)[0]
    return 2**31 - 1 if soft == resource.RLIM_INFINITY else soft


def reserve_of(limit: int) -> int:
    """Descriptors that connections leave to engines, files, and probes of /health."""
    return max(_SMALLEST_RESERVE, min(_LARGEST_RESERVE, limit // 8))


def descriptors_in_use() -> int:
    """Return how many are open now."""
    try:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        return _UNKNOWN_IN_USE
