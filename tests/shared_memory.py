"""Memory as who keeps the engines makes it for experts that they have in common."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

F_ADD_SEALS, F_SEAL_SHRINK = 1033, 2  # linux/fcntl.h; in Python's module since 3.13 only


@contextmanager
def experts_memory(size: int = mmap.PAGESIZE) -> Iterator[int]:
    """A memfd of a page of zeros, sealed against shrinking."""
    fd = os.memfd_create("homenode experts", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)
        yield fd
    finally:
        os.close(fd)
