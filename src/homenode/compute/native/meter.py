"""Short bursts of what a pool of threads can do at most: read memory, multiply in registers, answer each other."""

from __future__ import annotations

from homenode import _native

_MULTIPLY_ROUNDS = 20_000  # 0.1 to 1 ms at every level
_ROUND_TRIPS = 200
_HUGE_PAGE = 2 << 20
_PARTNERS = 15  # of the first thread: enough to see one of them moved


class NativeMeter:
    """One burst a call, on all threads of a pool at once; callers repeat and choose. Other work must not run on the
    pool meanwhile.

    read_bytes: memory it keeps for reading, on huge pages where the machine grants them; every thread reads a slice it
    touched first. It should be several times the last-level caches, or caches are measured. ValueError for sizes out of
    bounds, OSError when memory is refused.
    """

    def __init__(self, pool: _native.ThreadPool, level: _native.Level, read_bytes: int) -> None:
        self._pool = pool
        self._level = level
        self._threads = len(pool.cpus)
        self._buffer = _native.ReadBuffer(pool, max(1, read_bytes // self._threads))
        pages = self._buffer.nbytes // self._threads // _HUGE_PAGE
        self._parts = max(p for p in (1, 2, 4, 8) if pages % p == 0)
        self._part = 0

    @property
    def cpus(self) -> list[int]:
        """The CPU of each thread, -1 for one that is not pinned."""
        return list(self._pool.cpus)

    @property
    def huge_pages(self) -> bool:
        """Is the memory it reads on huge pages (asked for and granted)?"""
        return self._buffer.huge_pages

    def read(self, eight_streams: bool, short: bool) -> float:
        """Bytes a second of reading memory, each thread its slice as one stream or as eight that are 4 KiB apart.

        All of it, or with `short` an eighth, another one every time: the less time it takes, the less is it disturbed.
        """
        if not short:
            return self._buffer.nbytes / self._buffer.read(self._level, eight_streams, 0, 1)
        self._part = (self._part + 1) % self._parts
        return (
            self._buffer.nbytes / self._parts / self._buffer.read(self._level, eight_streams, self._part, self._parts)
        )

    def multiply(self, kind: str) -> float:
        """Operations a second (a multiply-add is two) in registers, summed over the threads: the widest instruction the
        level has for `kind`.

        int8: products of bytes summed in integers; int6: the same with weights of at most six bits. bf16: products of
        bfloat16 summed in float32. f32: fused multiply-adds. A level without an instruction of its own for a kind does
        what its kernels do instead. KeyError for another kind.
        """
        operations, seconds = _native.multiply_burst(self._pool, self._level, _native.Multiply[kind], _MULTIPLY_ROUNDS)
        return sum(operations / s for s in seconds)

    def occupy(self, rounds: int) -> float:
        """Keep all threads multiplying for `rounds` rounds, in one native call; the seconds the slowest took."""
        return max(_native.multiply_burst(self._pool, self._level, _native.Multiply.int8, rounds)[1])

    def round_trips(self) -> tuple[float, ...]:
        """Nanoseconds in which the first thread asks each other one and has its answer: small where they
        share a cache.
        """
        partners = range(1, min(self._threads, 1 + _PARTNERS))
        return tuple(_native.round_trip_ns(self._pool, other, _ROUND_TRIPS) for other in partners)
