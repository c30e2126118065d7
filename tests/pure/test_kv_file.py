"""Where each worker's heads and layers lie in the file of the engine, and in a neighbour's, whatever the degrees. By
arithmetic alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from homenode.compute.kv_memory import KvLayout, KvRegion
from homenode.compute.ops import KvGeometry
from homenode.engine.executor.kv_file import joined, shares_of
from homenode.engine.executor.neighbours import sliced
from homenode.model.part import IndexRange, ModelPart
from homenode.model.partition import Alignment, divide, divide_heads
from homenode.transfer.state.pages import difference, hole, region_spans

NOTHING = IndexRange(0, 0)
BLOCKS = 3


@dataclass(frozen=True)
class Engine:
    parts: list[ModelPart]
    layout: KvLayout
    owners: list[int]  # of each region, the worker


def own_layout(geometry: KvGeometry, homes: int) -> KvLayout:
    """As a worker makes it: its heads shared among its homes, each a region with pages of its own."""
    layers, shape = len(geometry.layers), geometry.only_shape
    kv_heads, head_dim, sides = shape.kv_heads, shape.key_width, shape.sides
    tile = 2 * 16 * head_dim
    head = sides * geometry.block_size // 16 * tile
    regions, offset = [], 0
    for first, past in ((kv_heads * i // homes, kv_heads * (i + 1) // homes) for i in range(homes)):
        if first < past:
            block = (past - first) * head
            regions.append(KvRegion(first, past, offset, BLOCKS * block, block, head, -1, 0, layers))
            offset += layers * BLOCKS * block + 256
            offset += -offset % (2 << 20)
    sizes = (layers, kv_heads, head_dim, geometry.block_size)
    return KvLayout(*sizes, "bf16", tile, BLOCKS, offset, tuple(regions), sides)


@st.composite
def engines(draw: st.DrawFn, layers: int, kv_heads: int, group: int) -> Engine:
    stages, ranks, homes = draw(st.integers(1, layers)), draw(st.integers(1, kv_heads * group)), draw(st.integers(1, 3))
    cuts, heads = divide(layers, stages), divide_heads(group * kv_heads, kv_heads, 16, ranks, Alignment())
    assume(heads is not None)
    assert cuts is not None and heads is not None
    parts = [
        ModelPart(span, s, stages, r, ranks, query, kv, NOTHING, NOTHING, NOTHING, NOTHING, ())
        for s, span in enumerate(cuts)
        for r, (query, kv) in enumerate(heads)
    ]
    geometries = [KvGeometry.uniform(part.layers.count, part.kv_heads.count, 16, 32, "bf16") for part in parts]
    layouts, shares = [own_layout(geometry, homes) for geometry in geometries], shares_of(geometries, BLOCKS)
    assert all(layout.nbytes <= share.nbytes for layout, share in zip(layouts, shares, strict=True))
    owners = [number for number, layout in enumerate(layouts) for _ in layout.regions]
    return Engine(parts, joined(parts, layouts, shares), owners)


MODELS = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
PAIRS = MODELS.flatmap(lambda model: st.tuples(engines(*model), engines(*model)))


def places(layout: KvLayout, layer: int, head: int, block: int) -> list[tuple[int, int]]:
    """Regions that have a head of a layer, each with where in the file that begins."""
    found = []
    for index, region in enumerate(layout.regions):
        first, past = layout.layers_of(region)
        if first <= layer < past and region.first_head <= head < region.past_head:
            steps = (
                (layer - first) * region.layer_stride
                + block * region.block_stride
                + (head - region.first_head) * region.head_stride
            )
            found.append((index, region.offset + steps))
    return found


@given(MODELS.flatmap(lambda model: engines(*model)))
def test_every_worker_that_has_a_head_has_it_in_the_file_and_nothing_lies_on_anything_else(engine: Engine) -> None:
    layout, taken = engine.layout, set()
    assert hole(layout) is None
    for layer in range(layout.layers):
        for head in range(layout.kv_heads):
            for block in range(BLOCKS):
                found = places(layout, layer, head, block)
                having = [
                    number
                    for number, part in enumerate(engine.parts)
                    if part.layers.first <= layer < part.layers.end and part.kv_heads.first <= head < part.kv_heads.end
                ]
                assert [engine.owners[index] for index, _ in found] == having
                taken |= {place for _, place in found}
    head_bytes = layout.block_bytes // (layout.layers * layout.kv_heads)
    starts = sorted(taken)
    assert len(starts) == BLOCKS * sum(map(layout.holds, layout.regions))
    assert all(after - before >= head_bytes for before, after in pairwise(starts))
    assert starts[0] >= 0 and starts[-1] + head_bytes <= layout.nbytes


@given(PAIRS)
def test_engines_of_any_degrees_fit_each_other(pair: tuple[Engine, Engine]) -> None:
    source, target = (engine.layout for engine in pair)
    assert difference(source, target) is None
    spans = region_spans(source, target)
    assert not isinstance(spans, str)
    cells = sum((span.past_layer - span.first_layer) * (span.past_head - span.first_head) for span in spans)
    assert cells == sum(map(target.holds, target.regions))


@given(PAIRS)
def test_a_worker_sees_of_a_neighbour_s_memory_what_it_has_itself(pair: tuple[Engine, Engine]) -> None:
    ours, theirs = pair
    for part in ours.parts:
        own = sliced(theirs.layout, part)
        assert hole(own) is None and own.nbytes == theirs.layout.nbytes
        for layer in range(part.layers.count):
            for head in range(part.kv_heads.count):
                seen = [place for _, place in places(own, layer, head, 2)]
                assert seen == [
                    place
                    for _, place in places(theirs.layout, part.layers.first + layer, part.kv_heads.first + head, 2)
                ]
