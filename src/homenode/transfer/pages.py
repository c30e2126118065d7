"""Where tokens lie: pages of the sender, blocks of the receiver, heads of ranks. Arithmetic, and what cannot be matched."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from homenode.transfer.memory import TILE_TOKENS, KvLayout

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
    return layout.layers * layout.kv_heads * 2 * page_count(tokens, TILE_TOKENS) * layout.tile_bytes


def span_bytes(layout: KvLayout, first: int, count: int, tokens: int, page_tokens: int) -> int:
    """Of pages first .. first + count - 1 of a sequence of `tokens` positions."""
    past = min(first + count, page_count(tokens, page_tokens))
    if past <= first:
        return 0
    return (past - first - 1) * page_bytes(layout, page_tokens) + page_bytes(layout, tokens_in(past - 1, tokens, page_tokens))


def chunk_pages(layout: KvLayout, page_tokens: int, chunk: int) -> int:
    """Pages that are handed over at once: as many as `chunk` bytes hold, at least one, at most what one frame may ask for."""
    return min(max(chunk // page_bytes(layout, page_tokens), 1), 4096)


def first_target(held: int, page_tokens: int, block_size: int) -> int:
    """The receiver's block that holds the first position after `held` pages."""
    return held * page_tokens // block_size


def difference(source: KvLayout, target: KvLayout) -> str | None:
    """Why keys and values cannot be copied from the one to the other; None if they can. Block sizes may differ."""
    for name in ("layers", "kv_heads", "head_dim", "dtype", "tile_bytes"):
        here, there = getattr(source, name), getattr(target, name)
        if here != there:
            return f"{name} is {here} in the sender's KV memory and {there} in the receiver's"
    for layout, whose in ((source, "sender"), (target, "receiver")):
        if layout.block_size <= 0 or layout.block_size % TILE_TOKENS:
            return f"the {whose}'s KV blocks hold {layout.block_size} tokens, which is no multiple of {TILE_TOKENS}"
    spans = head_spans([(r.first_head, r.past_head) for r in source.regions], [(r.first_head, r.past_head) for r in target.regions])
    return spans if isinstance(spans, str) else None


def readable_in_place(source: KvLayout, target: KvLayout) -> bool:
    """Whether attention over the target's memory may as well read the source's: pages as large as blocks, and no byte from another NUMA node."""
    near = all(
        there.node == here.node or -1 in (there.node, here.node)
        for here in target.regions
        for there in source.regions
        if there.first_head < here.past_head and here.first_head < there.past_head
    )
    return near and source.block_size == target.block_size and difference(source, target) is None


def head_spans(sources: Sequence[Heads], targets: Sequence[Heads]) -> list[HeadSpan] | str:
    """Which heads go from which rank (or region) of the source to which of the target, whatever the two degrees of parallelism.

    Where ranks of the source hold copies of a head (fewer heads than ranks), the first is read. A string says which head nobody has.
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
