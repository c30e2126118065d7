"""KV memory that is reserved: its pages come when they are asked for or written, go when they are given back, and
hold what neighbours wrote."""

from __future__ import annotations

import errno
import mmap
import os
import random

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.native.kv_pages import KvPages, RegionPages
from homenode.compute.ops import KvGeometry
from homenode.compute.thread_memory import ThreadMemory
from homenode.host.bind.memory.huge_pages import residences
from tests.examples import seeds

HUGE, SMALL = 2 << 20, 4096
POPULATE = 23
GEOMETRY = KvGeometry.uniform(layers=30, kv_heads=3, head_dim=64, block_size=64, dtype="bf16")  # 1.4 MiB a block


def _present(backend: NativeBackend) -> int:
    found = residences([part[:2] for part in backend._kv_ranges])
    assert found is not None
    return found[0].present


@pytest.mark.parametrize("threads", [1, 3])
def test_reserved_memory_comes_and_goes_as_the_kernel_sees_it(threads: int) -> None:
    backend = NativeBackend([-1] * threads, spin_us=20)
    cache = backend.kv_cache(GEOMETRY, 64, touched=False)
    assert _present(backend) == 0 == backend.statistics()["kv_pages"]["present"]
    backend.change_kv_pages([(0, 8, True), (40, 42, True)])
    told = backend.statistics()["kv_pages"]["present"]
    assert 10 * GEOMETRY.block_bytes <= told == _present(backend) <= 10 * GEOMETRY.block_bytes + 4 * HUGE
    backend.change_kv_pages([(0, 8, False), (40, 42, False)])
    assert _present(backend) == 0 == backend.statistics()["kv_pages"]["present"]
    del cache


def test_what_neighbours_hold_stays_and_what_went_back_is_zero() -> None:
    backend = NativeBackend([-1], spin_us=20)
    cache = backend.kv_cache(GEOMETRY, 12, touched=False)
    memory = backend.kv_memory(cache)
    backend.change_kv_pages([(0, 12, True)])
    for block in range(12):
        for piece in memory.pieces(block, 4):
            np.frombuffer(piece, np.uint8)[:] = block + 1
    backend.change_kv_pages([(3, 5, False), (9, 12, False)])
    for block in (0, 1, 2, 5, 6, 7, 8):
        assert all(np.all(np.frombuffer(piece, np.uint8) == block + 1) for piece in memory.pieces(block, 4)), block
    backend.change_kv_pages([(0, 12, False), (0, 12, True)])
    assert not any(np.any(np.frombuffer(piece, np.uint8)) for block in range(12) for piece in memory.pieces(block, 4))


def test_all_of_it_is_there_at_once_unless_told_otherwise() -> None:
    backend = NativeBackend([-1], spin_us=20)
    cache = backend.kv_cache(GEOMETRY, 8)
    backend.change_kv_pages([(0, 8, False)])  # it stays
    assert _present(backend) >= cache.nbytes


@pytest.mark.parametrize("seed", seeds(8))
def test_pages_hold_all_that_is_wanted_and_nothing_else(seed: int) -> None:
    """Against a plain model of pages: whatever a block that is wanted touches is there; a page that no such block
    touches is not."""
    rng = random.Random(seed)
    block_bytes, blocks = rng.choice([(1000, 50), (4096, 20), (HUGE // 3, 30), (3 * HUGE + 5000, 9), (HUGE, 7)])
    size = -(-(block_bytes * blocks + 256) // SMALL) * SMALL
    there: set[int] = set()
    unit = HUGE if size >= HUGE else SMALL

    def advise(address: int, length: int, advice: int) -> None:
        assert address % unit == 0
        assert 0 < length <= HUGE + size - (address - HUGE)
        pages = set(range((address - HUGE) // unit, -(-(address - HUGE + length) // unit)))
        if advice == POPULATE:
            there.update(pages)
        else:
            there.difference_update(pages)

    region = RegionPages(HUGE, size, block_bytes, blocks, advise)
    assert region.unit == unit
    wanted: set[int] = set()
    for _ in range(200):
        first = rng.randrange(blocks)
        past = rng.randrange(first + 1, blocks + 1)
        if rng.random() < 0.5:
            region.take(first, past)
            wanted.update(range(first, past))
        else:
            region.give_back(first, past)
            wanted.difference_update(range(first, past))
        needed = {p for b in wanted for p in range(b * block_bytes // unit, -(-(b + 1) * block_bytes // unit))}
        assert there == needed
        last = -(-size // unit) - 1
        assert region.present == len(there) * unit - (unit * (last + 1) - size) * (last in there)


def test_kernels_that_cannot_be_asked_are_touched_and_nothing_is_overwritten() -> None:
    memory = mmap.mmap(-1, 8 * SMALL)
    view = np.frombuffer(memory, np.uint8)
    view[SMALL] = 7

    def advise(address: int, length: int, advice: int) -> None:
        raise OSError(errno.EINVAL, "an old kernel")

    RegionPages(view.ctypes.data, 8 * SMALL, SMALL, 8, advise).take(0, 8)
    assert view[SMALL] == 7
    found = residences([(view.ctypes.data, 8 * SMALL)])
    assert found is not None
    assert found[0].present >= 8 * SMALL


def test_pages_of_a_home_nobody_is_bound_to_are_touched_by_its_cpus() -> None:
    before = os.sched_getaffinity(0)
    cpu, seen = max(before), list[set[int]]()

    def advise(address: int, length: int, advice: int) -> None:
        seen.append(os.sched_getaffinity(0))

    region = RegionPages(HUGE, HUGE, SMALL, 8, advise, cpus=(cpu,))
    region.take(0, 1)
    region.give_back(0, 1)
    assert seen == [{cpu}, before]
    RegionPages(HUGE, HUGE, SMALL, 8, advise, cpus=(1 << 20,)).take(0, 1)  # no such CPU
    assert seen[-1] == os.sched_getaffinity(0) == before


@pytest.mark.parametrize(("bound", "touched"), [(True, False), (False, True)])
def test_regions_of_several_homes_come_from_their_own_nodes(bound: bool, touched: bool) -> None:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    backend = NativeBackend(cpus, spin_us=20, memory=ThreadMemory((0, 1), (0, 1), bound=bound))
    assert [backend.touched_by(home, 0) for home in (0, 1)] == [(cpu,) if touched else () for cpu in cpus]
    assert backend.touched_by(0, errno.EPERM) == (cpus[0],)
    assert backend.touched_by(-1, errno.EPERM) == ()


def test_a_refusal_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def advise(address: int, length: int, advice: int) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    pages = KvPages([RegionPages(HUGE, HUGE, SMALL, 8, advise)])
    for _ in range(3):
        pages.take(0, 1)
    assert [record.message.count("no memory") for record in caplog.records] == [1]


def test_the_rest_of_a_page_that_is_somebody_elses_stays() -> None:
    """As where a sanitizer's heap gives exactly as many bytes as were asked for."""
    calls: list[tuple[int, int]] = []
    region = RegionPages(HUGE, SMALL + 904, 1000, 5, lambda address, length, advice: calls.append((address, length)))
    region.take(0, 5)
    region.give_back(0, 5)
    region.give_back(4, 5)
    assert calls == [(HUGE, SMALL + 904), (HUGE, SMALL), (HUGE, SMALL)]
