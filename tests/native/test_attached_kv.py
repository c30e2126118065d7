"""Attention over blocks of another process's KV memory, read in place: the bits of one's own blocks, and
never written.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.native.kv_memory import NativeKvMemory, copy_kv
from homenode.compute.ops import KvGeometry
from tests.native.kv_bytes import fill
from tests.native.steps import Part, same_bits
from tests.native.test_attention import BLOCKS, Cached, Case

CASES = [
    Case(8, 4, 8, 300),
    Case(7, 1, 64, 290, "bf16"),
    Case(8, 2, 128, 300, "bf16", 64, 100),
    Case(6, 3, 10, 200, "int8", 64),  # heads that are no multiple of 16 long: readers go past the last one
]


def foreign_memories(
    backend: NativeBackend, cached: Cached, table: list[int]
) -> list[tuple[NativeKvMemory, list[int]]]:
    """The blocks of `table` again: in the cache's own file, in a cache of other size and in a pool, each mapped as
    another process does.
    """
    own = backend.kv_memory(cached.cache)
    other = backend.kv_memory(backend.kv_cache(cached.case.geometry, BLOCKS + 3, shared=True))
    pool = backend.kv_pool(cached.case.geometry, len(table))
    found = [(own, table)]
    for memory in (other, pool):
        fill(memory, 5)
        blocks = list(range(len(table)))[::-1]
        tokens = len(table) * own.layout.block_size
        assert copy_kv(memory, blocks, own, table, 0, len(table), tokens) is not None
        found.append((memory, blocks))
    return [(backend.map_kv(os.dup(memory.fd), memory.layout), blocks) for memory, blocks in found]


class Shared(Cached):
    """`Cached` over memory others can map."""

    def __init__(self, backend: NativeBackend, case: Case) -> None:
        super().__init__(backend, case)
        self.cache = backend.kv_cache(case.geometry, BLOCKS, shared=True)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attached_blocks_give_the_bits_of_own_blocks(backend: NativeBackend, case: Case) -> None:
    cached = Shared(backend, case)
    table = list(range(1, 2 - (-case.length // case.block_size)))
    rows = case.inputs()
    cached([Part(0, case.length, table)], rows)
    whole = (case.length - 1) // case.block_size  # blocks that nobody writes any more
    last = [x[whole * case.block_size :] for x in rows]
    part = Part(whole * case.block_size, len(last[0]), table)
    wanted = cached([part], last)
    for memory, blocks in foreign_memories(backend, cached, table):
        first = backend.attach_kv(cached.cache, memory)
        mixed = [first + b for b in blocks[:whole]] + table[whole:]
        assert same_bits(cached([Part(part.start, part.count, mixed)], last), wanted)
        one = [table[i] if i % 2 else mixed[i] for i in range(len(table))]
        assert same_bits(cached([Part(part.start, part.count, one)], last), wanted)
        backend.detach_kv(cached.cache, first)


def attached(backend: NativeBackend) -> tuple[Shared, int, list[np.ndarray]]:
    cached = Shared(backend, CASES[0])
    pool = backend.kv_pool(cached.case.geometry, 4)
    return (
        cached,
        backend.attach_kv(cached.cache, backend.map_kv(pool.fd, pool.layout)),
        [x[:1] for x in CASES[0].inputs()],
    )


def test_steps_that_would_write_there_are_refused(backend: NativeBackend) -> None:
    cached, first, row = attached(backend)
    size = cached.case.block_size
    assert first == BLOCKS
    cached([Part(2 * size, 1, [first, first + 3, 0])], row)
    for parts in (
        [Part(0, 1, [first])],
        [Part(size - 1, 1, [first])],
        [Part(2 * size, 1, [0, 1, first + 2])],
        [Part(size + 3, 1, [0, first])],
    ):
        with pytest.raises(ValueError, match="read only"):
            cached(parts, row)
    two = [np.repeat(x, 2, axis=0) for x in row]
    with pytest.raises(ValueError, match="read only"):
        cached([Part(size - 1, 2, [first, 0])], two)


def test_blocks_that_are_not_attached_are_refused_and_numbers_are_not_used_again(backend: NativeBackend) -> None:
    cached, first, row = attached(backend)
    size, pool = cached.case.block_size, backend.kv_pool(cached.case.geometry, 2)
    second = backend.attach_kv(cached.cache, pool)
    assert second == first + 4
    cached([Part(2 * size, 1, [first + 3, second + 1, 0])], row)
    with pytest.raises(ValueError, match=f"names block {second + 2}"):
        cached([Part(size, 1, [second + 2, 0])], row)
    backend.detach_kv(cached.cache, first)
    for block in range(first, first + 4):
        with pytest.raises(ValueError, match=f"names block {block}"):
            cached([Part(size, 1, [block, 0])], row)
    cached([Part(size, 1, [second, 0])], row)
    assert backend.attach_kv(cached.cache, pool) == second + 2
    with pytest.raises(ValueError, match="none begins with"):
        backend.detach_kv(cached.cache, first)


def test_memory_of_another_shape_is_refused() -> None:
    backend = NativeBackend([-1], spin_us=20)
    cache = backend.kv_cache(KvGeometry.uniform(2, 2, 16, 32, "bf16"), 4, shared=True)
    others = [
        (3, 2, 16, 32, "bf16"),
        (2, 1, 16, 32, "bf16"),
        (2, 2, 18, 32, "bf16"),
        (2, 2, 16, 64, "bf16"),
        (2, 2, 16, 32, "int8"),
    ]
    for layers, heads, head_dim, size, dtype in others:
        with pytest.raises(ValueError, match="are not those of the KV cache"):
            backend.attach_kv(cache, backend.kv_pool(KvGeometry.uniform(layers, heads, head_dim, size, dtype), 2))


def test_what_is_attached_stays_mapped_and_goes_when_it_is_detached() -> None:
    backend = NativeBackend([-1], spin_us=20)
    cache = backend.kv_cache(KvGeometry.uniform(2, 2, 16, 32, "bf16"), 4)
    pool = backend.kv_pool(KvGeometry.uniform(2, 2, 16, 32, "bf16"), 5)
    first = backend.attach_kv(cache, backend.map_kv(pool.fd, pool.layout))

    def mappings() -> int:
        return Path("/proc/self/maps").read_text(encoding="utf-8").count("homenode KV pool")

    before = mappings()
    backend.detach_kv(cache, first)
    assert mappings() == before - 1


def test_memory_comes_and_goes_while_steps_run() -> None:
    backend = NativeBackend([-1, -1], spin_us=20)
    case = Case(8, 4, 8, 400)
    cached = Shared(backend, case)
    table = list(range(13))
    rows = case.inputs()
    cached([Part(0, 400, table)], rows)
    row = [x[399:] for x in rows]
    wanted = cached([Part(399, 1, table)], row)
    (memory, blocks), *_ = foreign_memories(backend, cached, table)
    stop, failures = threading.Event(), []

    def churn() -> None:
        try:
            while not stop.is_set():
                backend.detach_kv(cached.cache, backend.attach_kv(cached.cache, memory))
        except BaseException as error:
            failures.append(error)

    other = threading.Thread(target=churn)
    other.start()
    try:
        for _ in range(200):
            first = backend.attach_kv(cached.cache, memory)
            assert same_bits(cached([Part(399, 1, [first + b for b in blocks[:12]] + table[12:])], row), wanted)
            backend.detach_kv(cached.cache, first)
    finally:
        stop.set()
        other.join()
    assert not failures
