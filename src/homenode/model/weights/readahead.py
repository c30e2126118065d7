"""Asking the kernel for parts of a file before they are read."""

from __future__ import annotations

import os
from contextlib import suppress

_AHEAD_BYTES = 64 << 20


class Readahead:
    """Of one open file, whose readers go from its begin to `end`, each thread somewhere else: to the kernel that looks random."""

    def __init__(self, fd: int, end: int) -> None:
        self._fd, self._end, self._asked = fd, end, 0

    def reading(self, begin: int, end: int) -> None:
        """These bytes are read next: have them and what follows fetched."""
        begin, end = max(begin, self._asked), min(end + _AHEAD_BYTES, self._end)
        if begin < end:
            self._asked = end
            with suppress(OSError):  # a pipe, or a file system that cannot
                os.posix_fadvise(self._fd, begin, end - begin, os.POSIX_FADV_WILLNEED)
