"""Weights and KV memory over several homes: the same bits however they are spread, copies where they were asked for,
and the kernel's word for it.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from homenode import _native
from homenode.compute.native import NativeBackend
from homenode.compute.native.backend import NativeProgram
from homenode.compute.ops import KvGeometry, Ops, StepArrays, StepLimits, Tensor
from homenode.compute.thread_memory import ThreadMemory
from homenode.model.weights.node_placement import GROUP_ROWS, member_rows
from homenode.numa_policy import MATRIX_POLICIES
from tests.native.weights import load, packed_floats, stored

POLICIES = MATRIX_POLICIES
HOMES = (0, 0, 1, 1, 2)
NODE = min(int(path.name[4:]) for path in Path("/sys/devices/system/node").glob("node[0-9]*"))  # one that there is


def backend(homes: tuple[int, ...] = HOMES, *, bound: bool = True, interleaved: bool = False) -> NativeBackend:
    memory = ThreadMemory(homes, (NODE,) * (max(homes) + 1), bound, interleaved)
    return NativeBackend([-1] * len(homes), spin_us=20, groups=[(home,) for home in homes], memory=memory)


def products(backend: NativeBackend, weight: _native.Weight, rows: np.ndarray) -> np.ndarray:
    program, arrays = compiled(backend, weight, rows)
    values: np.ndarray = program.run(arrays).numpy()
    return values


def compiled(backend: NativeBackend, weight: _native.Weight, rows: np.ndarray) -> tuple[NativeProgram, StepArrays]:
    """A program that multiplies these rows, and a step of it."""
    constant = backend.constant(rows)

    def forward(ops: Ops) -> Tensor:
        return ops.linear(constant, [weight])

    n = len(rows)
    limits = StepLimits(max_tokens=n, max_sequences=n, max_sampled_rows=n, max_blocks_per_sequence=1)
    numbers = np.arange(n, dtype=np.int32)
    arrays = StepArrays(
        ids=np.zeros(n, np.int32),
        positions=np.zeros(n, np.int32),
        query_start=np.arange(n + 1, dtype=np.int32),
        context_len=np.ones(n, np.int32),
        block_table=np.zeros((n, 1), np.int32),
        sample_rows=numbers,
    )
    return backend.compile(lambda ops: ops.select(forward(ops)), limits), arrays


@pytest.mark.parametrize("form", ["Q8_0", "Q4_K", "BF16", "F32"])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_products_are_the_same_however_a_weight_is_spread(tmp_path: Path, form: str, rows: int) -> None:
    matrix = stored(form, 300, 256)
    x = np.random.default_rng(rows).standard_normal((rows, 256), np.float32)
    alone = NativeBackend([-1], spin_us=20)
    wanted = products(alone, load(alone, tmp_path / "w", matrix), x)
    for policy, bound in itertools.product(POLICIES, (True, False)):
        over = backend(bound=bound)
        weight = load(over, tmp_path / "w", matrix, policy=policy)
        assert np.array_equal(products(over, weight, x), wanted), (policy, bound)


def test_only_copies_take_more_memory() -> None:
    over, values = backend(), np.ones((320, 512), np.float32)
    sizes = {policy: over.weight_from_array(values, "F32", policy).nbytes for policy in POLICIES}
    assert sizes["shard"] == sizes["interleave"] == values.nbytes
    assert sizes["mirror"] == 3 * values.nbytes


def test_every_home_has_chunks_of_its_own() -> None:
    pool = _native.ThreadPool([-1] * len(HOMES), 0, False)
    arena = _native.Arena(pool, HOMES, [NODE] * 3)
    values = np.ones((320, 512), np.float32)
    split = packed_floats(pool, values, arena)
    assert {home for _, _, home in arena.ranges} == {0, 1, 2}
    chunks = [(address, address + size, home) for address, size, home in arena.ranges]
    for thread, (begin, end, address) in enumerate(split.pieces):
        assert end > begin
        assert [home for first, last, home in chunks if first <= address < last] == [HOMES[thread]]
    interleaved = packed_floats(pool, values, arena, _native.NativeNumaPolicy.interleave)
    assert {home for _, _, home in arena.ranges} == {-1, 0, 1, 2}
    assert interleaved.nbytes == split.nbytes


def test_a_home_of_a_node_that_is_not_there_is_refused_by_the_kernel_and_told() -> None:
    pool = _native.ThreadPool([-1], 0, False)
    arena = _native.Arena(pool, [0], [1000])
    weight = packed_floats(pool, np.ones((32, 64), np.float32), arena)
    assert weight.unpack_row(31).sum() == 64
    assert arena.refused > 0


@pytest.mark.parametrize(
    ("homes", "nodes"), [((0,), (0,)), ((0, 2), (0, 0, 0)), ((0, 1), (0,)), ((1, 1), (0,)), ((0, -1), (0, 0))]
)
def test_homes_that_do_not_fit_the_pool_are_refused(homes: tuple[int, ...], nodes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a home for each thread"):
        _native.Arena(_native.ThreadPool([-1, -1], 0, False), homes, nodes)


@pytest.mark.parametrize(("heads", "wanted"), [(5, {0: 2, 1: 2, 2: 1}), (1, {-1: 1}), (10, {0: 4, 1: 4, 2: 2})])
def test_kv_heads_are_shared_in_proportion_to_threads(heads: int, wanted: dict[int, int]) -> None:
    pool = _native.ThreadPool([-1] * len(HOMES), 0, False)
    arena = _native.Arena(pool, HOMES, [NODE] * 3)
    shape = _native.KvShape(layers=2, kv_heads=heads, head_dim=64, block_size=64, type=_native.KvType.bf16)
    cache = _native.kv_cache(pool, shape, 100, arena=arena)
    per_head = cache.nbytes // heads
    assert {home: size // per_head for _, size, home in cache.ranges} == wanted
    whole = _native.kv_cache(pool, shape, 100, arena=arena, interleaved=True)
    assert [home for _, _, home in whole.ranges] == [-1]
    assert whole.nbytes == cache.nbytes
    assert {whole.home_of(block) for block in range(100)} == {-1}


@pytest.mark.parametrize(("width", "stripe"), [(64, 16), (8, 128)])
def test_blocks_of_few_heads_lie_at_homes_in_turn(width: int, stripe: int) -> None:
    """As many as a chunk of positions, and a huge page, has at least: a block of 64 is 128 KiB, one of 8 is 16 KiB."""
    pool = _native.ThreadPool([-1] * len(HOMES), 0, False)
    arena = _native.Arena(pool, HOMES, [NODE] * 3)
    shape = _native.KvShape(layers=8, kv_heads=1, head_dim=width, block_size=64, type=_native.KvType.bf16)
    cache = _native.kv_cache(pool, shape, 200, arena=arena)
    # keys and values, 8 layers of 64 tokens
    per_block = 2 * 8 * 64 * width * 2
    assert cache.nbytes == 200 * per_block
    whole = max(4, -(-(2 << 20) // per_block)) if cache.nbytes >= 2 << 20 else 4
    assert stripe == whole
    assert [cache.home_of(block) for block in range(200)] == [block // stripe % 3 for block in range(200)]
    assert _native.kv_cache(pool, shape, 200).home_of(3) == -1


@pytest.mark.parametrize("block_size", [32, 64, 128, 256])
@pytest.mark.parametrize("width", [8, 64, 576])
def test_the_blocks_of_a_chunk_of_positions_lie_at_one_home(width: int, block_size: int) -> None:
    """Such blocks as the block pool hands out together, see `engine.kv.groups`."""
    pool = _native.ThreadPool([-1] * len(HOMES), 0, False)
    arena = _native.Arena(pool, HOMES, [NODE] * 3)
    shape = _native.KvShape(layers=2, kv_heads=1, head_dim=width, block_size=block_size, type=_native.KvType.bf16)
    cache, group = _native.kv_cache(pool, shape, 500, arena=arena, touched=False), 256 // block_size
    assert all(cache.home_of(block) == cache.home_of(block // group * group) for block in range(500))
    assert len({cache.home_of(block) for block in range(500)}) > 1


def test_the_kernel_is_asked_for_every_page() -> None:
    over = backend()
    kept = [
        over.weight_from_array(np.ones((640, 1024), np.float32), "F32", "mirror"),
        over.kv_cache(KvGeometry.uniform(2, 5, 64, 64, "bf16"), 50),
    ]
    seen = over.residency()
    if seen["weights"] is None:
        pytest.skip("move_pages is not allowed here")
    (weights,), (kv,) = seen["weights"], seen["kv"]
    assert weights["node"] == kv["node"] == NODE
    assert kept[0].nbytes <= weights["local"] == weights["present"]
    assert kept[1].nbytes <= kv["local"] == kv["present"]
    assert NativeBackend([-1], spin_us=20).residency() == {"weights": None, "kv": None, "scratch": None}


@pytest.mark.parametrize("rows", [1, 31, 32, 33, 320, 1000])
def test_rows_are_cut_where_the_plan_says(rows: int) -> None:
    over = backend((0, 0, 1, 1, 2))
    weight = over.weight_from_array(np.ones((rows, 32), np.float32), "F32")
    cut = [(begin, max(begin, end)) for begin, end, _ in weight.pieces]
    assert cut == [(min(begin, rows), end) for begin, end in member_rows(rows, 5)]
    assert all(begin % GROUP_ROWS == 0 for begin, end in cut if begin < end)


@pytest.mark.parametrize("homes", [HOMES, (0, 0, 0)])
def test_threads_of_several_homes_compute_in_memory_of_their_own(tmp_path: Path, homes: tuple[int, ...]) -> None:
    over = backend(homes)
    weight = load(over, tmp_path / "w", stored("Q8_0", 300, 256))
    program, arrays = compiled(over, weight, np.ones((5, 256), np.float32))
    assert len(program.run(arrays).numpy()) == 5
    parts = over.planned()["scratch"]
    if max(homes) == 0:  # nothing is set apart where it lies no nearer
        assert parts == ()
        return
    assert parts and len(parts) % len(homes) == 0
    assert all(part.address % 4096 == 0 and part.size % 4096 == 0 and part.size > 0 for part in parts)
    spans = sorted((part.address, part.address + part.size) for part in parts)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
    seen = over.residency()["scratch"]
    assert seen is None or [(line["node"], line["present"]) for line in seen] == [
        (NODE, sum(part.size for part in parts))
    ]
