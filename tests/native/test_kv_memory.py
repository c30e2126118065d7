"""KV memory that others can be given: copies, digests and pieces against its layout, byte by byte; epochs; tables that
do not fit.
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from homenode import _native
from homenode.compute.native import NativeBackend, available_levels
from homenode.compute.native.kv_memory import NativeEpochWords, NativeKvMemory, copy_kv
from homenode.compute.ops import KvGeometry
from homenode.errors import UserError
from homenode.kv_types import KV_TYPES
from tests.native.kv_bytes import digest, fill, head_of, page_tiles, same, tiles_of, whole, wire_bytes
from tests.native.kv_memories import GEOMETRY, pool, shared_cache


@pytest.mark.parametrize("dtype", ["f32", "bf16", "int8"])
@pytest.mark.parametrize(
    ("from_size", "to_size"), [(32, 32), (64, 64), (32, 64), (32, 128), (64, 32), (128, 32), (128, 64), (96, 64)]
)
def test_every_tile_arrives_where_the_tables_say_and_nothing_else_changes(
    backend: NativeBackend, dtype: str, from_size: int, to_size: int
) -> None:
    rng = np.random.default_rng(from_size * 1000 + to_size)
    head_dim = int(rng.choice([2, 10, 16, 64]))  # int8 tiles of no whole number of lines among them
    geometry = KvGeometry.uniform(int(rng.integers(1, 4)), int(rng.integers(1, 5)), head_dim, from_size, dtype)
    source, target = shared_cache(backend, geometry, 11), pool(backend, replace(geometry, block_size=to_size), 12)
    tokens = int(rng.integers(200, 300))
    table, to_table = (
        rng.permutation(11)[: -(-tokens // from_size)].tolist(),
        rng.permutation(12)[: -(-tokens // to_size)].tolist(),
    )
    first = int(rng.integers(0, 2))
    pages = -(-tokens // from_size) - first
    before = [region.copy() for region in whole(target)]
    found = copy_kv(target, to_table, source, table, first, pages, tokens)
    assert found == [
        digest(source, table, p, tokens, from_size, range(geometry.only_shape.kv_heads))
        for p in range(first, first + pages)
    ]
    after = [region.copy() for region in whole(target)]
    for region, was in zip(whole(target), before, strict=True):
        region[:] = was
    for layer in range(len(geometry.layers)):
        for head in range(geometry.only_shape.kv_heads):
            span = (page_tiles(first, from_size, tokens)[0], page_tiles(first + pages - 1, from_size, tokens)[1])
            for wanted, there in zip(
                tiles_of(source, table, layer, head, *span), tiles_of(target, to_table, layer, head, *span), strict=True
            ):
                for tile, place in zip(wanted, there, strict=True):
                    place[:] = tile
    assert all(np.array_equal(a, b) for a, b in zip(after, whole(target), strict=True))


def test_some_heads_are_copied_to_other_heads(backend: NativeBackend) -> None:
    source, target = shared_cache(backend, KvGeometry.uniform(2, 5, 16, 64, "bf16"), 4), pool(backend, GEOMETRY, 4)
    kept = head_of(target, 1, 2, 0).copy()
    found = copy_kv(target, [2, 0], source, [3, 1], 0, 2, 100, source_heads=(2, 4), target_first_head=1)
    assert found == [digest(source, [3, 1], p, 100, 64, range(2, 4)) for p in range(2)]
    assert np.array_equal(head_of(target, 1, 2, 1), head_of(source, 1, 3, 2))
    assert np.array_equal(head_of(target, 0, 2, 2), head_of(source, 0, 3, 3))
    assert np.array_equal(head_of(target, 1, 2, 0), kept)
    assert found is not None and [d[16:32] for d in source.digests([3, 1], 0, 2, 100)] == found


def test_pages_that_are_not_there_are_left_out(backend: NativeBackend) -> None:
    source, target = shared_cache(backend, GEOMETRY, 4), pool(backend, GEOMETRY, 4)
    kept = head_of(target, 1, 1, 2).copy()
    found = copy_kv(target, [0, 1, 2], source, [3, -1, 2], 0, 3, 192)
    assert found is not None and [len(d) for d in found] == [24, 0, 24]
    assert np.array_equal(head_of(target, 1, 1, 2), kept)
    assert np.array_equal(head_of(target, 1, 2, 2), head_of(source, 1, 2, 2))


def test_levels_threads_and_homes_change_no_digest() -> None:
    geometry = KvGeometry.uniform(3, 5, 10, 96, "int8")
    first = NativeBackend([-1], spin_us=20)
    source = shared_cache(first, geometry, 9)
    table = [8, 0, 3, 4, 1]
    wanted = source.digests(table, 0, 5, 450)
    assert wanted == [digest(source, table, p, 450, 96, range(5)) for p in range(5)]
    for level in available_levels():
        assert NativeBackend([-1], level=level).map_kv(source.fd, source.layout).digests(table, 0, 5, 450) == wanted
    homes = _native.Arena(_native.ThreadPool([-1] * 3, 0, False), [0, 1, 2], [0, 0, 0])
    shape = _native.KvShape(layers=3, kv_heads=5, head_dim=10, block_size=96, type=_native.KvType.int8)
    pool_of_three = _native.ThreadPool([-1] * 3, 0, False)
    cache = _native.kv_cache(pool_of_three, shape, 9, arena=homes, sharing=_native.Sharing.writable)
    parted = NativeKvMemory(_native.KvMemoryHandle.of(cache), _native.best_level())
    assert len(parted.layout.regions) == 3
    assert (
        copy_kv(parted, [5, 4, 3, 2, 1], source, table, 0, 5, 450, threads=3)
        == wanted
        == parted.digests([5, 4, 3, 2, 1], 0, 5, 450)
    )
    assert first.map_kv(parted.fd, parted.layout).digests([5, 4, 3, 2, 1], 0, 5, 450) == wanted


def test_private_memory_is_copied_and_digested_as_shared_memory(backend: NativeBackend) -> None:
    private = backend.kv_memory(backend.kv_cache(GEOMETRY, 5))
    assert private.fd == -1
    fill(private, 3)
    target = pool(backend, replace(GEOMETRY, block_size=32), 8)
    assert copy_kv(target, [7, 1, 2, 0], private, [4, 2], 0, 2, 128) == private.digests([4, 2], 0, 2, 128)
    assert same(private, target, [4, 2], [7, 1, 2, 0], 128)


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_any_flipped_bit_and_any_two_words_exchanged_change_the_digest(backend: NativeBackend, dtype: str) -> None:
    memory = pool(backend, KvGeometry.uniform(2, 2, 6, 32, dtype), 2)
    rng, (data,) = np.random.default_rng(7), whole(memory)
    page = memory.layout.block_bytes
    wanted = memory.digests([1], 0, 1, 32)[0]
    for bit in rng.integers(0, 8 * page, 500):
        data[page + bit // 8] ^= 1 << (bit % 8)
        assert memory.digests([1], 0, 1, 32)[0] != wanted, f"bit {bit}"
        data[page + bit // 8] ^= 1 << (bit % 8)
    words = data[page:].view(np.uint64)
    for a, b in rng.integers(0, len(words), (500, 2)):
        if words[a] != words[b]:
            words[[a, b]] = words[[b, a]]
            assert memory.digests([1], 0, 1, 32)[0] != wanted, f"words {a} and {b}"
            words[[a, b]] = words[[b, a]]
    assert memory.digests([1], 0, 1, 32)[0] == wanted


def test_what_is_behind_the_last_token_does_not_count(backend: NativeBackend) -> None:
    memory = pool(backend, GEOMETRY, 1)
    wanted = memory.digests([0], 0, 1, 17)
    head_of(memory, 1, 0, 2)[:, 2:] ^= 255
    assert memory.digests([0], 0, 1, 17) == wanted
    head_of(memory, 1, 0, 2)[1, 1, 0] ^= 1
    assert memory.digests([0], 0, 1, 17) != wanted


@pytest.mark.parametrize("tiles", [0, 1, 3, 4])
def test_pieces_are_the_memory_itself_in_the_order_of_the_wire(backend: NativeBackend, tiles: int) -> None:
    for memory in (
        shared_cache(backend, GEOMETRY, 5),
        pool(backend, GEOMETRY, 5),
        backend.kv_memory(backend.kv_cache(GEOMETRY, 5)),
    ):
        pieces = memory.pieces(3, tiles)
        assert b"".join(pieces) == wire_bytes(memory, 3, tiles)
        if tiles:
            pieces[0][0] = 1 + pieces[0][0] & 255
            assert b"".join(pieces) == wire_bytes(memory, 3, tiles)
    assert len(pool(backend, GEOMETRY, 5).pieces(3, 4)) == 1
    assert len(shared_cache(backend, GEOMETRY, 5).pieces(3, 4)) == 1


def test_pieces_outlive_what_they_are_of() -> None:
    backend = NativeBackend([-1], spin_us=20)
    memory = pool(backend, GEOMETRY, 3)
    wanted, pieces = wire_bytes(memory, 2, 4), memory.pieces(2, 4)
    del memory, backend
    assert b"".join(pieces) == wanted


def test_epochs_that_are_not_what_they_must_be_are_noticed_before(backend: NativeBackend) -> None:
    source, target = shared_cache(backend, GEOMETRY, 4), pool(backend, GEOMETRY, 4)
    epochs = NativeEpochWords.create(4)
    epochs.write([3, 1], [7, 9])
    assert [epochs.read(b) for b in range(4)] == [0, 9, 0, 7]
    kept = head_of(target, 0, 2, 0).copy()
    table = [3, 1, 2]
    assert copy_kv(target, [0, 1, 2], source, table, 0, 3, 192, epochs=(epochs, [7, 9, 1])) is None
    assert np.array_equal(head_of(target, 0, 2, 0), kept)
    assert copy_kv(target, [0, 1, 2], source, table, 1, 2, 192, epochs=(epochs, [9, 0])) == source.digests(
        table, 1, 2, 192
    )
    assert copy_kv(target, [0, 1, 2], source, table, 0, 2, 192, epochs=(epochs, [7, (1 << 64) - 1])) is None


def test_words_that_hold_and_words_that_do_not() -> None:
    own = NativeEpochWords.create(4)
    own.write([3, 1], [7, (1 << 64) - 1])
    seen = NativeEpochWords.map(own.fd, 4)
    assert seen.hold([], []) and seen.hold([3, 0, 1], [7, 0, (1 << 64) - 1]) and not seen.hold([3, 0], [7, 1])
    own.write([3], [8])
    assert not seen.hold([3], [7]) and seen.hold([3], [8])
    for blocks, epochs in (([4], [0]), ([-1], [0]), ([0, 1], [0])):
        with pytest.raises(ValueError):
            seen.hold(blocks, epochs)


def test_an_epoch_that_changes_while_the_page_is_read_is_noticed() -> None:
    backend = NativeBackend([-1], spin_us=20)
    geometry = KvGeometry.uniform(16, 8, 64, 1024, "f32")  # a page of 64 MiB: milliseconds
    source, target, epochs = pool(backend, geometry, 1, 1), pool(backend, geometry, 1, 2), NativeEpochWords.create(1)
    (to,), (data,) = whole(target), whole(source)
    noticed, deadline = False, time.monotonic() + 60
    for epoch in range(10**6):
        to[0] = data[0] ^ 1

        def change(epoch: int = epoch) -> None:
            while to[0] != data[0] and time.monotonic() < deadline:  # the copy has begun
                pass
            epochs.write([0], [epoch + 1])

        other = threading.Thread(target=change)
        other.start()
        noticed = copy_kv(target, [0], source, [0], 0, 1, 1024, epochs=(epochs, [epoch])) is None
        begun = to[0] == data[0]
        other.join()
        if (noticed and begun) or time.monotonic() > deadline:
            break
    assert noticed and begun


def test_epoch_words_of_another_process_are_for_reading(backend: NativeBackend) -> None:
    own = NativeEpochWords.create(1000)
    other = NativeEpochWords.map(own.fd, 1000)
    own.write([999], [5])
    assert other.read(999) == 5 and other.fd == -1 and len(other) == 1000
    with pytest.raises(ValueError, match="another process"):
        other.write([0], [1])
    for place in (-1, 1000):
        with pytest.raises(ValueError, match="of 1000"):
            own.read(place)
        with pytest.raises(ValueError, match="of 1000"):
            own.write([place], [1])
    with pytest.raises(UserError, match="wanted at least"):
        NativeEpochWords.map(own.fd, 10**6)


def refused_tables() -> list[tuple[dict[str, object], str]]:
    return [
        ({"source_table": [4, 0]}, "source block 4 of 4"),
        ({"source_table": [-2, 0]}, "source block -2 of 4"),
        ({"source_table": [1]}, "source table of 1 blocks is too short"),
        ({"target_table": [1, 4]}, "target block 4 of 4"),
        ({"target_table": [1, -1]}, "target block -1 of 4"),
        ({"target_table": [1]}, "target table of 1 blocks is too short"),
        ({"first_page": -1}, "from page -1"),
        ({"pages": -1}, "-1 pages"),
        ({"pages": 3}, "page 2 of 64 tokens is past"),
        ({"pages": (1 << 62)}, "pages from page"),
        ({"tokens": -5}, "-5 tokens"),
        ({"page_tokens": 40}, "pages of 40 tokens"),
        ({"source_heads": (0, 4)}, "heads 0 to 4 of 3"),
        ({"source_heads": (2, 2)}, "heads 2 to 2 of 3"),
        ({"target_first_head": 1}, "3 heads from head 1 of 3 on"),
        ({"threads": 0}, "0 threads"),
    ]


@pytest.mark.parametrize(("change", "message"), refused_tables(), ids=lambda x: x if isinstance(x, str) else "")
def test_tables_that_do_not_fit_are_refused(change: dict[str, object], message: str) -> None:
    backend = NativeBackend([-1], spin_us=20)
    source, target = backend.kv_pool(GEOMETRY, 4), backend.kv_pool(GEOMETRY, 4)
    call: dict[str, object] = {
        "source_table": [1, 2],
        "target_table": [3, 0],
        "first_page": 0,
        "pages": 2,
        "tokens": 128,
    }
    assert copy_kv(target, source=source, **call) is not None  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=message):
        copy_kv(target, source=source, **{**call, **change})  # type: ignore[arg-type]


def test_memories_of_other_shapes_are_refused() -> None:
    backend = NativeBackend([-1], spin_us=20)
    source = backend.kv_pool(GEOMETRY, 4)
    for other in (
        KvGeometry.uniform(3, 3, 16, 64, "bf16"),
        KvGeometry.uniform(2, 3, 18, 64, "bf16"),
        replace(GEOMETRY, dtype="int8"),
        replace(GEOMETRY, layers=tuple(layer._replace(value_width=0) for layer in GEOMETRY.layers)),
    ):
        with pytest.raises(ValueError, match="differ in layers, head, type or sides"):
            copy_kv(backend.kv_pool(other, 4), [0], source, [0], 0, 1, 64)
    with pytest.raises(ValueError, match="2 epochs for 1 pages"):
        copy_kv(backend.kv_pool(GEOMETRY, 4), [0], source, [0], 0, 1, 64, epochs=(NativeEpochWords.create(4), [0, 0]))
    with pytest.raises(ValueError, match="3 epoch words for 4 blocks"):
        copy_kv(backend.kv_pool(GEOMETRY, 4), [0], source, [0], 0, 1, 64, epochs=(NativeEpochWords.create(3), [0]))


def test_the_core_keeps_every_type() -> None:
    assert {kind.name for kind in _native.KvType} == KV_TYPES.keys()
