"""Layers of unlike heads as cells alike: each KV head of each layer is somewhere, and at its own place, whatever the ranks and stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from homenode.compute.kv_memory import KvLayout
from homenode.compute.ops import KvGeometry, LayerKv
from homenode.engine.executor.kv_file import joined, shares_of
from homenode.engine.kv_transfer.shares import layout_of_cells, shares_of_shapes
from homenode.model.kv_cells import in_cells, kv_cells
from homenode.model.parts import PartitionSpec, plan_parts
from homenode.model.spec import ModelSpec, RopeSpec
from homenode.model.weights.load import layers_kv
from homenode.transfer.kv.pages import difference, hole
from tests.pure.test_kv_file import BLOCKS, own_layout, places

NEAR, FAR = LayerKv(4, 16, 16), LayerKv(2, 32, 32)
SPEC = ModelSpec(
    architecture="gemma4", hidden_size=64, intermediate_size=96, num_layers=6, num_heads=8, num_kv_heads=4, head_dim=32, vocab_size=320,
    max_position=512, rms_norm_eps=1e-6, rope=RopeSpec(), tie_word_embeddings=True, layer_kv=(NEAR, NEAR, FAR, NEAR, FAR, 4),
)  # fmt: skip


def engine(how: PartitionSpec) -> tuple[KvLayout, dict[tuple[int, int], set[tuple[int, int]]]]:
    """What an engine's KV memory is to others, and where in its file each KV head of each layer has its block 1."""
    cells, parts = kv_cells(SPEC), plan_parts(SPEC, {}, how)
    assert cells is not None
    geometries = [KvGeometry(layers_kv(SPEC, part), 32, "bf16") for part in parts]
    shares, layouts, found = shares_of(geometries, BLOCKS), [], dict[tuple[int, int], set[tuple[int, int]]]()
    for part, geometry, share in zip(parts, geometries, shares, strict=True):
        own = [layer for layer in range(part.layers.first, part.layers.end) if layer in cells.firsts]
        of_shapes = []
        for (shape, numbers), (begin, size) in zip(
            geometry.shapes.items(), shares_of_shapes(geometry, BLOCKS), strict=True
        ):
            layout = own_layout(replace(geometry, layers=(shape,) * len(numbers)), homes=2)
            assert layout.nbytes <= size
            of_shapes.append(layout)
            for place, number in enumerate(numbers):
                first = part.heads_in(own[number])[1].first
                for head in range(shape.kv_heads):
                    ((_, at),) = places(layout, place, head, 1)
                    found.setdefault((own[number], first + head), set()).add(
                        (share.offset + begin + at, shape.key_width)
                    )
        layouts.append(layout_of_cells(cells, SPEC, part, geometry, of_shapes))
    return joined(parts, layouts, shares, cells), found


@pytest.mark.parametrize(
    "how",
    [PartitionSpec(), PartitionSpec(ranks=2), PartitionSpec(ranks=4), PartitionSpec(stages=2, ranks=2, layers=(2, 4))],
    ids=str,
)
def test_every_head_is_found_at_its_place(how: PartitionSpec) -> None:
    cells = kv_cells(SPEC)
    assert cells is not None and (cells.width, cells.count) == (16, 3 * 4 + 2 * 2 * 2)
    layout, heads = engine(how)
    assert hole(layout) is None
    for (layer, head), seen in heads.items():
        for at, width in seen:
            each = width // cells.width
            for part in range(each):
                cell = cells.firsts[layer] + head * each + part
                step = (
                    2 * 2 * 2 * 16 * 16 * part
                )  # keys and values of two tiles of 16 tokens and 16 elements of two bytes
                assert at + step in [place for _, place in places(layout, 0, cell, 1)]


def test_engines_that_are_cut_otherwise_go_together() -> None:
    layouts = [
        engine(how)[0] for how in (PartitionSpec(), PartitionSpec(ranks=2), PartitionSpec(stages=2, layers=(3, 3)))
    ]
    assert all(difference(one, other) is None for one in layouts for other in layouts)


def test_layers_alike_are_no_cells() -> None:
    alike = replace(SPEC, layer_kv=(NEAR,) * 6)
    geometry = KvGeometry.uniform(6, 4, 16, 32, "bf16")
    assert kv_cells(alike) is None and in_cells(alike, geometry) is geometry
    whole = KvGeometry((NEAR, NEAR, FAR, NEAR, FAR), 32, "bf16")
    assert in_cells(SPEC, whole).block_bytes == whole.block_bytes
    assert kv_cells(replace(SPEC, layer_kv=(NEAR, LayerKv(1, 24, 16)) * 3)) is None
