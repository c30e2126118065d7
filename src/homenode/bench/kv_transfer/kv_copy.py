"""Speed of copying KV pages between two shared memories, digests included, beside libc's memcpy: one thread, cold,
in turns.

A batch of scattered blocks many times larger than the caches goes from one memfd to another, whose pages are all there.
Every round each way copies it twice, in another order of the ways, and its faster pass counts; what is compared are the
ways within a round, since the machine's speed changes between rounds.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from homenode.compute.kv_memory import TILE_TOKENS
from homenode.compute.native import NativeBackend
from homenode.compute.native.kv_memory import NativeKvMemory, copy_kv
from homenode.compute.ops import KvGeometry
from homenode.errors import UserError

BATCH_BYTES = 192 << 20
_HEAD = 64
_LEAST = 2 * 32 * 2 * _HEAD  # keys and values of 32 tokens of a head, bf16


@dataclass(frozen=True)
class CopySpeed:
    """Bytes a second of each way, the median over the rounds; and how many times memcpy's the copy's was, the median
    over the rounds of that ratio."""

    block_bytes: int
    memcpy: float
    copy: float
    digest: float  # reading and summing alone
    ratio: float


def measure_kv_copy(
    backend: NativeBackend, block_bytes: Sequence[int], rounds: int = 7, batch_bytes: int = BATCH_BYTES
) -> list[CopySpeed]:
    """Measure with blocks of these sizes: UserError for one that is no power of two times 8 KiB. Takes memory for two
    batches."""
    return [_measure(backend, _geometry(size), max(1, batch_bytes // size), rounds) for size in block_bytes]


def _geometry(block_bytes: int) -> KvGeometry:
    """A KV block of so many bytes, as a model might have it."""
    doublings = (block_bytes // _LEAST).bit_length() - 1
    if doublings < 0 or _LEAST << doublings != block_bytes:
        raise UserError(
            f"KV blocks of {block_bytes} bytes cannot be measured; wanted a power of two, at least {_LEAST}"
        )
    tokens, heads = min(doublings, 2), min(max(doublings - 4, 0), 3)
    return KvGeometry.uniform(1 << (doublings - tokens - heads), 1 << heads, _HEAD, 32 << tokens, "bf16")


def _measure(backend: NativeBackend, geometry: KvGeometry, blocks: int, rounds: int) -> CopySpeed:
    source, target = _filled(backend, geometry, blocks), _filled(backend, geometry, blocks)
    order, places = (random.Random(seed).sample(range(blocks), blocks) for seed in (1, 2))
    size, tokens = geometry.block_bytes, blocks * geometry.block_size
    begin, end = (
        np.frombuffer(m.pieces(0, geometry.block_size // TILE_TOKENS)[0], np.uint8).ctypes.data
        for m in (source, target)
    )

    def memcpy() -> None:
        for a, b in zip(order, places, strict=True):
            ctypes.memmove(end + b * size, begin + a * size, size)

    ways: dict[str, Callable[[], object]] = {
        "memcpy": memcpy,
        "copy": lambda: copy_kv(target, places, source, order, 0, blocks, tokens),
        "digest": lambda: source.digests(order, 0, blocks, tokens),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds):
        for name in random.Random(turn).sample(list(ways), len(ways)):
            seconds[name].append(min(_timed(ways[name]) for _ in range(2)))
    rates = {name: blocks * size / median(times) for name, times in seconds.items()}
    ratio = median(a / b for a, b in zip(seconds["memcpy"], seconds["copy"], strict=True))
    return CopySpeed(size, rates["memcpy"], rates["copy"], rates["digest"], ratio)


def _filled(backend: NativeBackend, geometry: KvGeometry, blocks: int) -> NativeKvMemory:
    memory = backend.kv_pool(geometry, blocks)
    for block in range(blocks):
        for piece in memory.pieces(block, geometry.block_size // TILE_TOKENS):
            np.frombuffer(piece, np.uint64)[:] = np.arange(block, block + len(piece) // 8, dtype=np.uint64)
    return memory


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def main() -> None:
    """Print the figures for the usual sizes."""
    for speed in measure_kv_copy(NativeBackend([-1]), [64 << 10, 1 << 20, 64 << 20]):
        rates = ", ".join(f"{name} {getattr(speed, name) / 1e9:.2f} GB/s" for name in ("memcpy", "copy", "digest"))
        print(f"blocks of {speed.block_bytes >> 10} KiB: {rates}; the copy is {speed.ratio:.2f} x memcpy")


if __name__ == "__main__":
    main()
