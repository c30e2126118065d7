"""Layers of unlike heads as cells alike: each KV head of each layer is somewhere, and at its own place, whatever the
ranks and stages.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from homenode.compute.kv_memory import KvLayout
from homenode.compute.ops import KvGeometry, LayerKv
from homenode.engine.executor.kv_file import joined, shares_of
from homenode.engine.kv_transfer.shares import layout_of_cells, shares_of_shapes
from homenode.model.kv_cells import in_cells, kv_cells
from homenode.model.parts import PartitionSpec, plan_parts
from homenode.model.spec import IndexerSpec, ModelSpec, PooledSpec, RopeSpec
from homenode.model.weights.load import layers_kv
from homenode.transfer.state.pages import difference, hole
from tests.pure.test_kv_file import BLOCKS, own_layout, places

NEAR, FAR = LayerKv(4, 16, 16), LayerKv(2, 32, 32)
SPEC = ModelSpec(
    architecture="gemma4", hidden_size=64, intermediate_size=96, num_layers=6, num_heads=8, num_kv_heads=4, head_dim=32,
    vocab_size=320,
    max_position=512, norm_eps=1e-6, rope=RopeSpec(), tie_word_embeddings=True,
    layer_kv=(NEAR, NEAR, FAR, NEAR, FAR, 4),
)  # fmt: skip
LATENT, INDEX = LayerKv(1, 48, 0, 40), IndexerSpec(heads=4, width=16, chosen=8, layers=(0, 1, 3, 4, 5), adjacent=True)
SPARSE = replace(SPEC, num_kv_heads=1, head_dim=48, layer_kv=(LATENT,) * 6, indexer=INDEX)
BLOCKS_OF_HEADS = replace(SPARSE, num_kv_heads=4, head_dim=32, layer_kv=(LayerKv(4, 32, 32),) * 6)
POOLED = replace(SPARSE, pooled=PooledSpec((4, 0, 8, 4, 8, 0), 48))
# Cells of each model: 3 * 4 + 2 * 2 * 2 of two sides, 6 * 3 + 5 of keys alone, 6 * 4 * 2 * 2 + 5 of keys and of values,
# and of 2 elements 6 * 24, 2 + 8 + 2 + 1 + 8 and 6 + 3 + 6 + 3.
MODELS = {
    "unlike heads": (SPEC, 16, 20),
    "latents with an indexer": (SPARSE, 16, 23),
    "heads with an indexer": (BLOCKS_OF_HEADS, 16, 101),
    "pooled rows": (POOLED, 2, 183),
}


def engine(spec: ModelSpec, how: PartitionSpec) -> tuple[KvLayout, dict[tuple[int, int], set[tuple[int, int]]]]:
    """What an engine's KV memory is to others, and where in its file each KV head of each layer has its block 1, by the
    first cell of that head.
    """
    cells, parts = kv_cells(spec), plan_parts(spec, {}, how)
    assert cells is not None
    geometries = [KvGeometry(layers_kv(spec, part), 32, "bf16") for part in parts]
    shares, layouts, found = shares_of(geometries, BLOCKS), [], dict[tuple[int, int], set[tuple[int, int]]]()
    for part, geometry, share in zip(parts, geometries, shares, strict=True):
        firsts = cells.firsts_in(part)
        assert len(firsts) == len(geometry.layers)
        of_shapes = []
        for (shape, numbers), (begin, size) in zip(
            geometry.shapes.items(), shares_of_shapes(geometry, BLOCKS), strict=True
        ):
            layout = own_layout(replace(geometry, layers=(shape,) * len(numbers)), homes=2)
            assert layout.nbytes <= size
            of_shapes.append(layout)
            for place, number in enumerate(numbers):
                cell, first = firsts[number]
                for head in range(shape.kv_heads):
                    ((_, at),) = places(layout, place, head, 1)
                    each = cells.of_head(shape)
                    found.setdefault((cell + (first + head) * each, each), set()).add((share.offset + begin + at, each))
        layouts.append(layout_of_cells(cells, part, geometry, of_shapes))
    return joined(parts, layouts, shares, cells), found


HOWS = [
    PartitionSpec(),
    PartitionSpec(ranks=2),
    PartitionSpec(ranks=4),
    PartitionSpec(stages=2, ranks=2, layers=(3, 3)),
]


@pytest.mark.parametrize("how", HOWS, ids=str)
@pytest.mark.parametrize("model", MODELS)
def test_every_head_is_found_at_its_place(model: str, how: PartitionSpec) -> None:
    spec, width, count = MODELS[model]
    if model == "unlike heads" and how.layers is not None:
        how = replace(how, layers=(2, 4))  # the last layer reads what the one before it keeps
    cells = kv_cells(spec)
    assert cells is not None and (cells.width, cells.count) == (width, count)
    layout, heads = engine(spec, how)
    assert hole(layout) is None
    sides = 1 if cells.alone else 2
    assert sorted(cell + n for cell, each in heads for n in range(each)) == list(range(count))
    for (cell, each), seen in heads.items():
        for at, _ in seen:
            for part in range(each):
                # keys and values of two tiles of 16 tokens and elements of two bytes
                step = sides * 2 * 2 * 16 * width * part
                assert at + step in [place for _, place in places(layout, 0, cell + part, 1)]


@pytest.mark.parametrize("model", MODELS)
def test_engines_that_are_cut_otherwise_go_together(model: str) -> None:
    spec = MODELS[model][0]
    layouts = [
        engine(spec, how)[0]
        for how in (PartitionSpec(), PartitionSpec(ranks=2), PartitionSpec(stages=2, layers=(3, 3)))
    ]
    assert all(difference(one, other) is None for one in layouts for other in layouts)


def test_layers_of_one_head_are_one_region() -> None:
    """Block after block with all its layers, as the native core lays them: there are two regions."""
    cells, part = kv_cells(SPARSE), plan_parts(SPARSE, {}, PartitionSpec())[0]
    assert cells is not None
    geometry, of_shapes = KvGeometry(layers_kv(SPARSE, part), 32, "bf16"), []
    for shape, numbers in geometry.shapes.items():
        layout = own_layout(replace(geometry, layers=(shape,) * len(numbers)), homes=1)
        (region,) = layout.regions
        head = region.head_stride
        strides = {"layer_stride": head, "block_stride": len(numbers) * head}
        regions = (structs.replace(region, **strides),)
        of_shapes.append(structs.replace(layout, regions=regions))
    layout = layout_of_cells(cells, part, geometry, of_shapes)
    assert [(region.first_head, region.past_head) for region in layout.regions] == [(0, 18), (18, 23)]
    assert hole(layout) is None


def test_layers_alike_are_no_cells() -> None:
    alike = replace(SPEC, layer_kv=(NEAR,) * 6)
    geometry = KvGeometry.uniform(6, 4, 16, 32, "bf16")
    assert kv_cells(alike) is None and in_cells(alike, geometry) is geometry
    whole = KvGeometry((NEAR, NEAR, FAR, NEAR, FAR), 32, "bf16")
    assert in_cells(SPEC, whole).block_bytes == whole.block_bytes
    keys = KvGeometry(layers_kv(SPARSE, plan_parts(SPARSE, {}, PartitionSpec())[0]), 32, "bf16")
    assert in_cells(SPARSE, keys).block_bytes == keys.block_bytes
    assert kv_cells(replace(SPEC, layer_kv=(NEAR, LayerKv(1, 24, 16)) * 3)) is None
