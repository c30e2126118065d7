"""Where positions lie on both sides."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from homenode.compute.kv_memory import KvLayout, KvRegion
from homenode.transfer.state.pages import (
    HeadSpan,
    RegionSpan,
    chunk_pages,
    difference,
    first_target,
    head_spans,
    hole,
    page_bytes,
    page_count,
    readable_in_place,
    region_spans,
    span_bytes,
    tokens_in,
)


def layout(
    block_size: int = 32, heads: int = 8, regions: tuple[tuple[int, int], ...] = ((0, 8),), **more: object
) -> KvLayout:
    plain = KvLayout(
        4, heads, 64, block_size, "bfloat16", 2048, 10, 0, tuple(KvRegion(a, b, 0, 0, 0, 0) for a, b in regions)
    )
    return msgspec.structs.replace(plain, **more)


@given(st.integers(1, 5000), st.sampled_from([16, 32, 64, 128]))
def test_every_position_lies_in_one_page(tokens: int, page_tokens: int) -> None:
    pages = page_count(tokens, page_tokens)
    counts = [tokens_in(page, tokens, page_tokens) for page in range(pages)]
    assert sum(counts) == tokens and min(counts) >= 1 and counts[:-1] == [page_tokens] * (pages - 1)
    assert tokens_in(pages, tokens, page_tokens) == 0


def test_only_tiles_that_count_are_handed_over() -> None:
    kv = layout()
    tile = 4 * 8 * 2 * 2048
    assert [page_bytes(kv, n) for n in (0, 1, 16, 17, 32)] == [0, tile, tile, 2 * tile, 2 * tile]
    assert page_bytes(kv, 32) == kv.block_bytes
    assert span_bytes(kv, 1, 2, 70, 32) == 2 * tile + tile


@given(st.integers(1, 700), st.sampled_from([16, 32, 64]), st.integers(0, 50), st.integers(0, 50))
def test_bytes_of_a_span_are_those_of_its_pages(tokens: int, page_tokens: int, first: int, count: int) -> None:
    kv = layout()
    assert span_bytes(kv, first, count, tokens, page_tokens) == sum(
        page_bytes(kv, tokens_in(page, tokens, page_tokens)) for page in range(first, first + count)
    )


def test_chunks_have_at_least_one_page_and_fit_one_frame() -> None:
    kv = layout()
    assert chunk_pages(kv, 32, 1) == 1
    assert chunk_pages(kv, 32, 3 * kv.block_bytes) == 3
    assert chunk_pages(kv, 32, 1 << 40) == 4096


@pytest.mark.parametrize(
    ("held", "page", "block", "first"), [(0, 32, 64, 0), (2, 32, 64, 1), (3, 32, 64, 1), (1, 64, 32, 2), (3, 32, 32, 3)]
)
def test_the_first_block_to_be_filled(held: int, page: int, block: int, first: int) -> None:
    assert first_target(held, page, block) == first


@pytest.mark.parametrize(
    ("name", "other"), [("layers", 5), ("kv_heads", 4), ("head_dim", 128), ("dtype", "int8"), ("tile_bytes", 1024)]
)
def test_what_differs_is_named(name: str, other: object) -> None:
    """Rows 31, 32: refused with the difference before any traffic."""
    reason = difference(layout(), layout(**{name: other}))
    assert reason is not None and name in reason and str(other) in reason


def test_block_sizes_may_differ_in_whole_tiles() -> None:
    assert difference(layout(32), layout(96)) is None
    reason = difference(layout(32), layout(40))
    assert reason is not None and "40" in reason and "receiver" in reason


def test_heads_are_matched_over_different_numbers_of_ranks() -> None:
    """Row 33."""
    assert head_spans([(0, 4), (4, 8)], [(0, 8)]) == [HeadSpan(0, 0, 0, 4), HeadSpan(1, 0, 4, 8)]
    assert head_spans([(0, 8)], [(0, 4), (4, 8)]) == [HeadSpan(0, 0, 0, 4), HeadSpan(0, 1, 4, 8)]
    assert head_spans([(0, 3), (3, 8)], [(0, 4), (4, 8)]) == [
        HeadSpan(0, 0, 0, 3),
        HeadSpan(1, 0, 3, 4),
        HeadSpan(1, 1, 4, 8),
    ]
    # fewer heads than ranks: copies of a head
    assert head_spans([(0, 1), (0, 1), (1, 2), (1, 2)], [(0, 2)]) == [HeadSpan(0, 0, 0, 1), HeadSpan(2, 0, 1, 2)]
    assert difference(layout(regions=((0, 4), (4, 8))), layout(regions=((0, 2), (2, 8)))) is None


def test_a_head_nobody_has_is_named() -> None:
    reason = head_spans([(0, 4)], [(0, 8)])
    assert isinstance(reason, str) and "head 4" in reason
    assert difference(layout(regions=((0, 4),)), layout()) == f"{reason} (layers 0 to 3)"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_each_head_of_the_target_is_filled_once(source: list[int], target: list[int]) -> None:
    def ranges(sizes: list[int]) -> list[tuple[int, int]]:
        return [(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]

    spans = head_spans(ranges(source), ranges(target))
    if sum(source) < sum(target):
        assert isinstance(spans, str)
        return
    assert not isinstance(spans, str)
    heads = [head for span in spans for head in range(span.first_head, span.past_head)]
    assert heads == list(range(sum(target)))
    for span in spans:
        a, b = ranges(source)[span.source]
        assert a <= span.first_head < span.past_head <= b


LAYERS, HEADS = 6, 6


@st.composite
def engines(draw: st.DrawFn) -> KvLayout:
    """KV memory of an engine with stages of layers and ranks of heads, cut anywhere; a head may be with
    several ranks.
    """
    regions = []
    cuts = sorted({0, LAYERS, *draw(st.lists(st.integers(1, LAYERS - 1), max_size=3))})
    for first, past in pairwise(cuts):
        edges = sorted({0, HEADS, *draw(st.lists(st.integers(1, HEADS - 1), max_size=4))})
        for begin, end in pairwise(edges):
            copies = draw(st.integers(0, min(1, begin)))
            regions += [KvRegion(begin - copies, end, 0, 0, 0, 0, -1, first, past)] * draw(st.integers(1, 2))
    plain = KvLayout(LAYERS, HEADS, 64, 32, "bfloat16", 2048, 10, 0, tuple(regions))
    return (
        msgspec.structs.replace(plain, regions=(KvRegion(0, HEADS, 0, 0, 0, 0),))
        if draw(st.integers(0, 3)) == 0
        else plain
    )


def cells(layout: KvLayout, region: KvRegion) -> set[tuple[int, int]]:
    first, past = layout.layers_of(region)
    return {(layer, head) for layer in range(first, past) for head in range(region.first_head, region.past_head)}


@given(engines(), engines())
def test_all_that_a_region_holds_comes_once_from_the_first_that_has_it(source: KvLayout, target: KvLayout) -> None:
    spans = region_spans(source, target)
    assert not isinstance(spans, str) and difference(source, target) is None
    for index, region in enumerate(target.regions):
        mine = [span for span in spans if span.target == index]
        filled = [
            (la, h) for s in mine for la in range(s.first_layer, s.past_layer) for h in range(s.first_head, s.past_head)
        ]
        assert len(filled) == len(set(filled)) and set(filled) == cells(target, region)
        for span in mine:
            taken = cells(
                source, KvRegion(span.first_head, span.past_head, 0, 0, 0, 0, -1, span.first_layer, span.past_layer)
            )
            assert taken <= cells(source, source.regions[span.source])
            assert not any(taken & cells(source, before) for before in source.regions[: span.source])


@given(engines(), st.data())
def test_a_region_that_is_missing_is_a_hole_unless_others_have_it(of: KvLayout, data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, len(of.regions) - 1))
    rest = msgspec.structs.replace(of, regions=of.regions[:gone] + of.regions[gone + 1 :])
    left = set().union(*(cells(rest, region) for region in rest.regions))
    lost = cells(of, of.regions[gone]) - left
    assert hole(of) is None
    if lost:
        layer, head = min(lost)
        assert hole(rest) == f"no head {head} of layer {layer}"
        assert isinstance(region_spans(rest, of), str)
    else:
        assert hole(rest) is None
    assert of.has_copies == (sum(len(cells(of, region)) for region in of.regions) > LAYERS * HEADS)


@pytest.mark.parametrize(
    "region",
    [
        KvRegion(0, 9, 0, 0, 0, 0),
        KvRegion(-1, 8, 0, 0, 0, 0),
        KvRegion(0, 8, 0, 0, 0, 0, -1, 0, 5),
        KvRegion(0, 8, 0, 0, 0, 0, -1, 2, 2),
    ],
)
def test_a_region_of_heads_or_layers_that_are_not_there_is_none(region: KvRegion) -> None:
    assert hole(msgspec.structs.replace(layout(), regions=(region,))) is not None


def test_stages_and_ranks_are_read_in_place_where_each_part_is_near() -> None:
    ours = layout(regions=((0, 4), (4, 8)))
    parts = tuple(KvRegion(0, 8, 0, 0, 0, 0, node, 2 * stage, 2 * stage + 2) for stage, node in enumerate((0, 1)))
    theirs = msgspec.structs.replace(layout(), regions=parts)
    assert readable_in_place(theirs, ours)
    far = msgspec.structs.replace(
        ours, regions=tuple(msgspec.structs.replace(region, node=0) for region in ours.regions)
    )
    assert not readable_in_place(theirs, far)
    spans = region_spans(theirs, far)
    assert spans[0] == RegionSpan(0, 0, 0, 2, 0, 4) and len(spans) == 4
