"""Places where tokens lie: pages of the sender, blocks of the receiver, heads of ranks, layers of stages. Arithmetic,
and what cannot be matched."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from homenode.compute.kv_memory import TILE_TOKENS, KvLayout, KvRegion
from homenode.units import format_count

Heads = tuple[int, int]  # first, one past the last


class HeadSpan(msgspec.Struct, frozen=True):
    """Heads first_head .. past_head - 1 are copied from this rank of the source to that of the target."""

    source: int
    target: int
    first_head: int
    past_head: int


def page_count(tokens: int, page_tokens: int) -> int:
    """Pages (or blocks) that hold `tokens` positions."""
    return -(-tokens // page_tokens)


def tokens_in(page: int, tokens: int, page_tokens: int) -> int:
    """Positions of a sequence of `tokens` that lie in this page."""
    return max(min(tokens - page * page_tokens, page_tokens), 0)


def page_bytes(layout: KvLayout, tokens: int) -> int:
    """Bytes of a page as it is handed over: only tiles that hold one of its `tokens` positions count."""
    return layout.layers * layout.kv_heads * layout.sides * page_count(tokens, TILE_TOKENS) * layout.tile_bytes


def span_bytes(layout: KvLayout, first: int, count: int, tokens: int, page_tokens: int) -> int:
    """Bytes of pages first .. first + count - 1 of a sequence of `tokens` positions."""
    past = min(first + count, page_count(tokens, page_tokens))
    if past <= first:
        return 0
    return (past - first - 1) * page_bytes(layout, page_tokens) + page_bytes(
        layout, tokens_in(past - 1, tokens, page_tokens)
    )


def chunk_pages(layout: KvLayout, page_tokens: int, chunk: int) -> int:
    """Pages that are handed over at once: as many as `chunk` bytes hold, at least one, at most what one frame may ask
    for."""
    return min(max(chunk // page_bytes(layout, page_tokens), 1), 4096)


def first_target(held: int, page_tokens: int, block_size: int) -> int:
    """The receiver's block that holds the first position after `held` pages."""
    return held * page_tokens // block_size


def difference(source: KvLayout, target: KvLayout) -> str | None:
    """Return why keys and values cannot be copied from the one to the other; None if they can. Block sizes may
    differ."""
    for name in ("layers", "kv_heads", "head_dim", "dtype", "tile_bytes", "sides"):
        here, there = getattr(source, name), getattr(target, name)
        if here != there:
            return f"{name} is {here} in the sender's KV memory and {there} in the receiver's"
    for layout, whose in ((source, "sender"), (target, "receiver")):
        if layout.block_size <= 0 or layout.block_size % TILE_TOKENS:
            return (
                f"the {whose}'s KV blocks hold {format_count(layout.block_size, 'token')}, which is no multiple of "
                f"{TILE_TOKENS}"
            )
    spans = region_spans(source, target)
    return spans if isinstance(spans, str) else None


def readable_in_place(source: KvLayout, target: KvLayout) -> bool:
    """Tell whether attention over the target's memory may as well read the source's: pages as large as blocks, and no
    byte from another NUMA node."""
    if source.block_size != target.block_size or difference(source, target) is not None:
        return False
    spans = region_spans(source, target)
    if isinstance(spans, str):
        return False
    pairs = ((source.regions[span.source].node, target.regions[span.target].node) for span in spans)
    return all(there == here or -1 in (there, here) for there, here in pairs)


def head_spans(sources: Sequence[Heads], targets: Sequence[Heads]) -> list[HeadSpan] | str:
    """Return which heads go from which rank (or region) of the source to which of the target, whatever the two degrees
    of parallelism.

    Where ranks of the source hold copies of a head (fewer heads than ranks), the first is read. A string says which
    head nobody has.
    """
    spans = []
    for target, (first, past) in enumerate(targets):
        head = first
        while head < past:
            source = next((i for i, (a, b) in enumerate(sources) if a <= head < b), None)
            if source is None:
                return f"KV head {head}, which rank {target} of the receiver needs, is in no rank of the sender"
            end = min(past, sources[source][1])
            spans.append(HeadSpan(source, target, head, end))
            head = end
    return spans


class RegionSpan(msgspec.Struct, frozen=True):
    """Heads first_head .. past_head - 1 of layers first_layer .. past_layer - 1 are copied from this region of the
    source to that of the target."""

    source: int
    target: int
    first_layer: int
    past_layer: int
    first_head: int
    past_head: int


def region_spans(source: KvLayout, target: KvLayout) -> list[RegionSpan] | str:
    """Return what goes from where to where, whatever the tensor-parallel and the pipeline degrees of the two sides: all
    that each region of the target holds, once, from the first region of the source that has it. A string says what
    nobody has."""
    edges = sorted(
        {edge for layout in (source, target) for region in layout.regions for edge in layout.layers_of(region)}
    )
    spans = []
    for first, past in pairwise(edges):
        sources, targets = _across(source, first), _across(target, first)
        found = head_spans([heads for _, heads in sources], [heads for _, heads in targets])
        if isinstance(found, str):
            return f"{found} (layers {first} to {past - 1})"
        spans += [
            RegionSpan(sources[one.source][0], targets[one.target][0], first, past, one.first_head, one.past_head)
            for one in found
        ]
    return spans


def _across(layout: KvLayout, layer: int) -> list[tuple[int, Heads]]:
    """The regions that a layer is in, and which of its heads each has."""
    found = []
    for index, region in enumerate(layout.regions):
        first, past = layout.layers_of(region)
        if first <= layer < past:
            found.append((index, (region.first_head, region.past_head)))
    return found


def hole(layout: KvLayout) -> str | None:
    """Return what of its layers and heads no region of a layout has, or what a region has beyond them, in words; None:
    it is sound."""
    there = [bytearray(layout.kv_heads) for _ in range(layout.layers)]
    for region in layout.regions:
        first, past = layout.layers_of(region)
        if not (0 <= region.first_head < region.past_head <= layout.kv_heads and 0 <= first < past <= layout.layers):
            return f"heads {region.first_head} to {region.past_head} of layers {first} to {past}"
        for row in there[first:past]:
            row[region.first_head : region.past_head] = b"\1" * (region.past_head - region.first_head)
    for layer, row in enumerate(there):
        if (head := row.find(0)) >= 0:
            return f"no head {head} of layer {layer}"
    return None


def tiles_of(tokens: int) -> int:
    """Tiles that hold so many tokens, the last perhaps in part."""
    return -(-tokens // TILE_TOKENS)


def contiguous(like: KvLayout, block_size: int, blocks: int) -> KvLayout:
    """A layout of the same geometry with blocks of another size, one after another within each layer."""
    head = like.sides * tiles_of(block_size) * like.tile_bytes
    block = like.kv_heads * head
    region = KvRegion(0, like.kv_heads, 0, blocks * block, block, head)
    return msgspec.structs.replace(
        like, block_size=block_size, blocks=blocks, nbytes=like.layers * blocks * block, regions=(region,)
    )
