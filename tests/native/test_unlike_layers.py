"""KV memory of layers of unlike heads, and layers that read what another has stored, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from homenode.compute.native import NativeBackend
from homenode.compute.ops import FloatArray, KvGeometry, LayerKv, Ops, ScoreRule, StepLimits, Tensor
from homenode.compute.reference import ReferenceBackend
from tests.native.steps import Part, same_bits, step_of

WIDE, NARROW = LayerKv(1, 32, 32), LayerKv(2, 16, 16)
GEOMETRY = KvGeometry((NARROW, WIDE, NARROW), 32, "f32")
HEADS, TOKENS, BLOCKS = 4, 150, 9
TABLE = [7, 0, 3, 8, 1]


def inputs(shape: LayerKv, seed: int) -> list[FloatArray]:
    rng = np.random.default_rng(seed)
    heads = (HEADS, shape.kv_heads, shape.kv_heads)
    return [rng.standard_normal((TOKENS, n * shape.key_width)).astype(np.float32) for n in heads]


def run(backend: NativeBackend | ReferenceBackend, parts: list[Part], cache: object | None = None) -> FloatArray:
    """All layers' attention beside each other, then what a reader finds in layer 0 and in layer 1 that
    stores nothing.
    """
    cache = backend.kv_cache(GEOMETRY, BLOCKS) if cache is None else cache
    found = []
    for part in parts:
        rows = slice(part.start, part.start + part.count)

        def handle(x: FloatArray, rows: slice = rows) -> Tensor:
            return backend.constant(x[rows]) if isinstance(backend, NativeBackend) else x[rows]

        def forward(ops: Ops, layer: int, shape: LayerKv, stores: bool, handle: object = handle) -> Tensor:
            q, k, v = (handle(x) for x in inputs(shape, layer))  # type: ignore[operator]
            if not stores:
                k = v = None
            return ops.attention(q, k, v, cache, layer, ScoreRule(1.0, 20 if layer == 0 else None))

        step, room = step_of([part]), StepLimits(part.count, 1, 1, BLOCKS)
        calls = [(0, NARROW, True), (1, WIDE, True), (2, NARROW, True), (0, NARROW, False), (1, WIDE, False)]
        results = [backend.compile(lambda ops, call=call: forward(ops, *call), room).run(step) for call in calls]
        found.append(np.concatenate([np.array(np.asarray(rows)) for rows in results], axis=1))
    return np.concatenate(found)


def test_layers_of_unlike_heads_and_their_readers_attend_as_the_reference_does(backend: NativeBackend) -> None:
    wanted = run(ReferenceBackend(), [Part(0, TOKENS, TABLE)])
    found = run(backend, [Part(0, TOKENS, TABLE)])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    assert same_bits(found[:, : HEADS * 16], found[:, HEADS * 64 : HEADS * 80])  # who stores and who only reads
    cut = run(backend, [Part(0, 40, TABLE), Part(40, 1, TABLE), Part(41, 109, TABLE)])
    assert same_bits(found, cut)


@pytest.mark.parametrize("kept", ["bf16", "int8"])
def test_a_block_has_the_bytes_of_all_layers(kept: str) -> None:
    geometry = KvGeometry(GEOMETRY.layers, 32, kept)
    backend = NativeBackend([-1, -1])
    cache = backend.kv_cache(geometry, BLOCKS, touched=False)
    assert cache.nbytes == geometry.block_bytes * BLOCKS == backend.statistics()["kv_bytes"]
    backend.change_kv_pages([(0, BLOCKS, True)])
    assert backend.statistics()["kv_pages"]["present"] >= cache.nbytes
    backend.change_kv_pages([(0, BLOCKS, False)])
    assert backend.statistics()["kv_pages"]["present"] == 0


def test_others_can_map_memory_of_unlike_layers() -> None:
    backend = NativeBackend([-1])
    cache = backend.kv_cache(GEOMETRY, BLOCKS, shared=True)
    assert backend.statistics()["kv_shared"] and len(cache.caches) == len(GEOMETRY.shapes) == 2


def test_a_layer_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="layer 3 of 3"):
        backend = NativeBackend([-1])
        cache, q = backend.kv_cache(GEOMETRY, BLOCKS), backend.constant(np.ones((1, 64), np.float32))
        backend.compile(lambda ops: ops.attention(q, None, None, cache, 3, ScoreRule(1.0)), StepLimits(1, 1, 1, BLOCKS))


def test_a_geometry_counts_bytes_layer_by_layer() -> None:
    assert GEOMETRY.block_bytes == 32 * 4 * 2 * (2 * 16 + 32 + 2 * 16)
    assert GEOMETRY.shapes == {NARROW: [0, 2], WIDE: [1]}
    assert KvGeometry((LayerKv(1, 40, 32),), 32, "int8").block_bytes == 32 * (40 + 4 + 32 + 4)
    assert KvGeometry.uniform(3, 2, 16, 32, "bf16").only_shape == LayerKv(2, 16, 16)
    with pytest.raises(ValueError, match="2 shapes of layers; wanted one"):
        _ = GEOMETRY.only_shape
