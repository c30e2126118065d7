"""Pages of a KV cache that is only reserved at first: taken block by block, and given back, on the nodes its memory
was bound to.

Whole pages are taken and given back, huge ones where the memory was asked to be on them; one that holds parts of two
blocks stays as long as one of them is wanted. Sources: madvise(2), MADV_POPULATE_WRITE (Linux 5.14) and
MADV_DONTNEED.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from homenode.host.bind.base.syscalls import thread_cpus

_log = logging.getLogger(__name__)
_SMALL_PAGE, _HUGE_PAGE = 4096, 2 << 20  # csrc/host/memory.h
_DONTNEED, _POPULATE_WRITE = 4, 23

Advise = Callable[[int, int, int], None]


def advise(address: int, size: int, advice: int) -> None:
    """madvise(2) on memory of this process. OSError where the kernel refuses. The interpreter is free meanwhile."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), advice):
        code = ctypes.get_errno()
        raise OSError(code, f"madvise: {os.strerror(code)}")


class RegionPages:
    """The pages of one region: `blocks` blocks of `block_bytes` each, from `address`, a page's beginning, in `size`
    bytes. `cpus`: those of its home, on which pages are taken where the kernel is not asked to take them from its
    node; empty: anywhere."""

    def __init__(
        self,
        address: int,
        size: int,
        block_bytes: int,
        blocks: int,
        advise: Advise = advise,
        cpus: Collection[int] = (),
    ) -> None:
        huge = size >= _HUGE_PAGE and address % _HUGE_PAGE == 0
        self.unit = _HUGE_PAGE if huge else _SMALL_PAGE
        self._address, self._size, self._block_bytes = address, size, block_bytes
        self._in_use = bytearray(blocks)
        self._taken = bytearray(-(-size // self.unit))
        self._advise = advise
        self._cpus = cpus

    @property
    def present(self) -> int:
        """Bytes of the pages that were taken and not given back."""
        last = self._taken[-1] * (-self._size % self.unit)
        return self._taken.count(1) * self.unit - last

    def take(self, first: int, past: int) -> tuple[int, int]:
        """Have the pages of blocks `first` .. `past` - 1 there: their address and bytes. OSError where the kernel
        refuses: they then come when they are first written."""
        self._in_use[first:past] = b"\1" * (past - first)
        begin, end = self._pages_over(first, past)
        self._taken[begin:end] = b"\1" * (end - begin)
        address, size = self._bytes_of(begin, end)
        with _on(self._cpus):
            try:
                self._advise(address, size, _POPULATE_WRITE)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                _touch(address, size)
        return address, size

    def give_back(self, first: int, past: int) -> None:
        """Blocks `first` .. `past` - 1 are of no use any more: the pages go that hold none of another block that is."""
        self._in_use[first:past] = bytes(past - first)
        begin, end = self._pages_over(first, past)
        left, right = self._in_use.rfind(1, 0, first), self._in_use.find(1, past)
        if left >= 0:
            begin = max(begin, self._pages_over(left, left + 1)[1])
        if right >= 0:
            end = min(end, self._pages_over(right, right + 1)[0])
        if begin < end:
            self._taken[begin:end] = bytes(end - begin)
            address, size = self._bytes_of(begin, end)
            # Of memory that ends within a page the rest of that page is somebody else's.
            if size := size - (address + size) % _SMALL_PAGE:
                self._advise(address, size, _DONTNEED)

    def _pages_over(self, first: int, past: int) -> tuple[int, int]:
        """The pages that hold something of these blocks, from and past the last."""
        return first * self._block_bytes // self.unit, -(-past * self._block_bytes // self.unit)

    def _bytes_of(self, begin: int, end: int) -> tuple[int, int]:
        first = begin * self.unit
        return self._address + first, min(end * self.unit, self._size) - first


class KvPages:
    """The pages of all regions of a KV cache."""

    def __init__(self, regions: Sequence[RegionPages]) -> None:
        self._regions = regions
        self._refused = False  # and told so

    @property
    def present(self) -> int:
        """Bytes that were taken and not given back."""
        return sum(region.present for region in self._regions)

    def take(self, first: int, past: int) -> list[tuple[int, int]]:
        """Have the pages of these blocks there: address and bytes in each region; what the kernel refuses is said
        once, and comes when it is first written."""
        taken = []
        for region in self._regions:
            try:
                taken.append(region.take(first, past))
            except OSError as error:
                taken.append((0, 0))
                self._refuse(error)
        return taken

    def give_back(self, first: int, past: int) -> None:
        """Give back the pages of these blocks, which nobody reads or writes."""
        for region in self._regions:
            try:
                region.give_back(first, past)
            except OSError as error:
                self._refuse(error)

    def _refuse(self, error: OSError) -> None:
        if not self._refused:
            self._refused = True
            _log.warning("KV memory: the kernel refused to take or to give back pages ahead of their use: %s", error)


@contextmanager
def _on(cpus: Collection[int]) -> Iterator[None]:
    """The calling thread on these CPUs, so that what it touches first comes from their node; where it may not go
    there it stays."""
    if not cpus:
        yield
        return
    before = thread_cpus()
    with suppress(OSError):
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


def _touch(address: int, size: int) -> None:
    """Write what is there to every small page, for kernels that cannot be asked."""
    for at in range(address, address + size, _SMALL_PAGE):
        byte = ctypes.c_ubyte.from_address(at)
        byte.value = byte.value
