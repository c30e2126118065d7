"""Where weights and KV memory lie: matrices share huge pages, the kernel is asked what came of it, and small pages
compute the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from homenode import _native
from homenode.compute.native import NativeBackend
from homenode.compute.ops import KvGeometry
from homenode.engine.memory.huge_pages import on_small_pages, residence_of
from homenode.host.bind.memory.huge_pages import Residence, residences
from tests.native.weights import load, packed_floats, stored, unpacked

HUGE = 2 << 20
SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
given = pytest.mark.skipif(
    not SETTING.exists() or "[never]" in SETTING.read_text(),
    reason=f"{SETTING} is never or missing: this kernel gives no huge pages",
)


@given
@pytest.mark.parametrize("threads", [1, 3])
def test_many_small_matrices_lie_on_few_huge_pages(threads: int) -> None:
    backend = NativeBackend([-1] * threads, spin_us=20)
    values = np.ones((96, 1024), np.float32)
    kept = [backend.weight_from_array(values, "F32") for _ in range(100)]
    size = sum(weight.nbytes for weight in kept)
    pages = backend.statistics()["weight_pages"]
    assert size <= pages["present"] <= size + 2 * threads * HUGE
    # The first ones of a thread came before it was known that more would.
    assert pages["huge"] >= 0.8 * pages["present"]


@given
def test_kv_memory_is_counted_and_read_back_when_something_is_added() -> None:
    backend = NativeBackend([-1], spin_us=20)
    assert backend.statistics()["kv_pages"] == {"present": 0, "huge": 0}
    geometry = KvGeometry.uniform(4, 2, 64, 64, "bf16")
    cache = backend.kv_cache(geometry, 128)
    seen = backend.statistics()
    assert seen["kv_bytes"] == cache.nbytes == 128 * geometry.block_bytes
    assert cache.nbytes <= seen["kv_pages"]["present"] <= cache.nbytes + 2 * HUGE
    assert seen["kv_pages"]["huge"] >= 0.9 * cache.nbytes


def test_kv_memory_others_can_map_is_no_reason_to_ask_for_huge_pages() -> None:
    backend = NativeBackend([-1], spin_us=20)
    geometry = KvGeometry.uniform(4, 2, 64, 64, "bf16")
    cache = backend.kv_cache(geometry, 600, shared=True)  # large enough to be told of
    seen = backend.statistics()
    assert (
        seen["kv_shared"]
        and seen["kv_bytes"] == cache.nbytes == 600 * geometry.block_bytes <= seen["kv_pages"]["present"]
    )
    assert residence_of(seen) == Residence()
    assert on_small_pages(seen, "madvise", False) == ()
    backend.kv_cache(geometry, 1)
    assert not backend.statistics()["kv_shared"]


def test_memory_goes_with_the_last_matrix_in_it() -> None:
    pool = _native.ThreadPool([-1], 0, False)
    arena = _native.Arena(pool)
    values = np.ones((64, 16384), np.float32)
    kept = [packed_floats(pool, values, arena) for _ in range(8)]
    most = sum(size for _, size, _ in arena.ranges)
    assert most >= 8 * values.nbytes
    del kept[:7]
    assert kept[0].unpack_row(63).sum() == 16384
    assert 0 < sum(size for _, size, _ in arena.ranges) < most


@given
@pytest.mark.parametrize("threads", [1, 3])
def test_memory_that_was_expected_lies_in_one_piece_for_each_thread(threads: int) -> None:
    backend = NativeBackend([-1] * threads, spin_us=20)
    values = np.ones((96, 1024), np.float32)
    backend.begin_weights(100 * values.nbytes)
    kept = [backend.weight_from_array(values, "F32") for _ in range(100)]
    backend.end_weights()
    size = sum(weight.nbytes for weight in kept)
    pages = backend.statistics()["weight_pages"]
    assert size <= pages["present"] <= size + threads * HUGE
    assert pages["huge"] >= 0.95 * pages["present"]


def refused_huge_pages() -> int:
    """How often a fault got small pages since the machine started, as memory was in pieces."""
    counts = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
    return int(counts.get("thp_fault_fallback", 0))


@given
@pytest.mark.parametrize("told", [True, False], ids=["expected", "a surprise"])
def test_what_huge_pages_hold_behind_the_weights_is_given_back(told: bool) -> None:
    refused = refused_huge_pages()
    pool = _native.ThreadPool([-1] * 5, 0, False)
    arena = _native.Arena(pool, [0, 0, 1, 1, 2])
    values = np.random.default_rng(3).standard_normal((400, 1024)).astype(np.float32)
    if told:
        arena.expect(12 * values.nbytes // 5 * 9 // 8)
    kept = [packed_floats(pool, values, arena, _native.NativeNumaPolicy.mirror) for _ in range(12)]

    def present() -> int:
        found = residences([(address, size) for address, size, _ in arena.ranges])
        assert found
        return found[0].present

    size, before = sum(weight.nbytes for weight in kept), present()
    if refused_huge_pages() > refused:
        pytest.skip("the kernel had no more huge pages meanwhile")
    arena.trim()
    after = present()
    assert before > 1.1 * size  # five threads and three homes, with a huge page for each begun
    assert size <= after <= 1.02 * size + 4096 * len(arena.ranges)
    assert all(np.array_equal(weight.unpack_row(row), values[row]) for weight in kept for row in (0, 399))
    later = packed_floats(pool, values, arena)
    assert np.array_equal(later.unpack_row(399), values[399])


def test_an_arena_of_another_pool_is_refused() -> None:
    arena = _native.Arena(_native.ThreadPool([-1, -1], 0, False))
    with pytest.raises(ValueError, match="arena of 2 threads for a thread pool of 1"):
        packed_floats(_native.ThreadPool([-1], 0, False), np.ones((1, 32), np.float32), arena)


def test_rows_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    matrix = stored("F32", 37, 1 << 16)
    assert np.array_equal(unpacked(load(NativeBackend([-1, -1], spin_us=20), tmp_path / "w", matrix)), matrix.values)


ON_SMALL_PAGES = """
import ctypes, json, sys
if sys.argv[1] == "small":
    assert ctypes.CDLL(None).prctl(41, 1, 0, 0, 0) == 0  # PR_SET_THP_DISABLE
import numpy as np
from homenode.compute.native import NativeBackend
from homenode.engine.memory.huge_pages import on_small_pages
from homenode.host.bind.memory.huge_pages import disabled_for_this_process
backend = NativeBackend([-1, -1], spin_us=20)
values = np.random.default_rng(1).standard_normal((1024, 32768)).astype(np.float32)
weight = backend.weight_from_array(values, "F32")
pages = backend.statistics()
found = [finding.message for finding in on_small_pages(pages, "madvise", disabled_for_this_process())]
print(json.dumps({"pages": pages["weight_pages"], "found": found, "same": bool((weight.unpack_row(1000) == values[1000]).all())}))
"""


@given
@pytest.mark.parametrize("pages", ["small", "huge"])
def test_without_huge_pages_all_works_and_it_is_said(pages: str) -> None:
    done = subprocess.run([sys.executable, "-c", ON_SMALL_PAGES, pages], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["same"] and seen["pages"]["present"] >= 128 << 20
    if pages == "small":
        assert seen["pages"]["huge"] == 0
        assert len(seen["found"]) == 1 and "prctl" in seen["found"][0]
    else:
        assert seen["pages"]["huge"] >= 0.9 * seen["pages"]["present"] and seen["found"] == []
