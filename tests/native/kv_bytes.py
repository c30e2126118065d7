"""KV memory byte by byte, by its layout alone: what the copy loop and its digests are held against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from homenode.compute.kv_memory import TILE_TOKENS, KvLayout, KvMemory
from homenode.compute.native.kv_memory import NativeKvMemory

Bytes = npt.NDArray[np.uint8]
STEP, SPREAD, MASK = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B, (1 << 64) - 1


def whole(memory: NativeKvMemory) -> list[Bytes]:
    """The bytes of each region, from its first head to the end of its last."""
    return [np.asarray(view) for view in memory.handle.views]


def fill(memory: NativeKvMemory, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for region in whole(memory):
        region[:] = rng.integers(0, 256, region.size, np.uint8)


def head_of(memory: NativeKvMemory, layer: int, block: int, head: int) -> Bytes:
    """Keys and values of a head of a block: [2, tiles, tile_bytes], a view."""
    return copies_of(memory, layer, block, head)[0]


def copies_of(memory: NativeKvMemory, layer: int, block: int, head: int) -> list[Bytes]:
    """The same in each region that has it."""
    layout, tiles, found = memory.layout, memory.layout.block_size // TILE_TOKENS, []
    for data, region in zip(whole(memory), layout.regions, strict=True):
        first, past = layout.layers_of(region)
        if first <= layer < past and region.first_head <= head < region.past_head:
            at = (
                (layer - first) * region.layer_stride
                + block * region.block_stride
                + (head - region.first_head) * region.head_stride
            )
            found.append(data[at : at + 2 * tiles * layout.tile_bytes].reshape(2, tiles, layout.tile_bytes))
    return found


def tiles_of(
    memory: NativeKvMemory, table: Sequence[int], layer: int, head: int, first: int, past: int
) -> list[list[Bytes]]:
    """Tiles first .. past - 1 of a sequence, counted from position 0: those of keys, those of values."""
    tiles = memory.layout.block_size // TILE_TOKENS
    return [
        [head_of(memory, layer, table[t // tiles], head)[side, t % tiles] for t in range(first, past)]
        for side in (0, 1)
    ]


def page_tiles(page: int, page_tokens: int, tokens: int) -> tuple[int, int]:
    past = min((page + 1) * page_tokens, tokens)
    return page * page_tokens // TILE_TOKENS, -(-past // TILE_TOKENS)


def digest(
    memory: NativeKvMemory, table: Sequence[int], page: int, tokens: int, page_tokens: int, heads: range
) -> bytes:
    """As simd/kv_copy.h and kv_copy.cpp say, in Python's numbers."""
    layout, result = memory.layout, b""
    for head in heads:
        lines: list[Bytes] = []
        for layer in range(layout.layers):
            for side in tiles_of(memory, table, layer, head, *page_tiles(page, page_tokens, tokens)):
                lines += [np.pad(tile, (0, -len(tile) % 64)) for tile in side]
        result += _finish(np.concatenate(lines).view("<u8")).to_bytes(8, "little")
    return result


def _finish(words: npt.NDArray[np.uint64]) -> int:
    keys = (np.arange(1, len(words) + 1, dtype=np.uint64) * np.uint64(STEP)) ^ words
    products = ((keys & np.uint64(0xFFFFFFFF)) * (keys >> np.uint64(32))).reshape(-1, 8)
    neighbours = words.reshape(-1, 8)[:, [1, 0, 3, 2, 5, 4, 7, 6]]
    sums = (products + neighbours).sum(axis=0, dtype=np.uint64)
    mixed = len(words) // 8 * SPREAD & MASK
    for total in sums.tolist():
        mixed = (mixed ^ total) * STEP & MASK
        mixed = (mixed << 29 | mixed >> 35) & MASK
        mixed ^= mixed >> 32
    return mixed * SPREAD & MASK ^ mixed >> 31


def wire_bytes(memory: NativeKvMemory, block: int, tiles: int) -> bytes:
    """What `pieces` joined must be."""
    layout = memory.layout
    heads = (
        head_of(memory, layer, block, head)[:, :tiles]
        for layer in range(layout.layers)
        for head in range(layout.kv_heads)
    )
    return b"".join(head.tobytes() for head in heads)


def made_up(layout: KvLayout, rng: np.random.Generator) -> Iterator[KvLayout]:
    """Layouts that reach past the memory, or are none: one field of each is wrong."""
    changed = {
        "layers": [0, -1, layout.layers + 10**6, 1 << 40],
        "kv_heads": [0, layout.kv_heads + 1, layout.kv_heads - 1, -5],
        "head_dim": [0, layout.head_dim + 2, 3, 1 << 33],
        "block_size": [0, 16, layout.block_size * 8, 33, 1 << 31],
        "dtype": ["f64"],
        "tile_bytes": [0, layout.tile_bytes - 32, layout.tile_bytes * 2, -1],
        "blocks": [
            0,
            layout.blocks + layout.nbytes // layout.block_bytes + 1,
            (1 << 31) - 1,
            1 << 62,
            (1 << 63) - 1,
            1 << 64,
            -1,
        ],
        "nbytes": [0, 1, layout.nbytes + 1, 1 << 62, (1 << 64) - 1, -1],
        "regions": [(), layout.regions[:-1], layout.regions * 2],
    }
    for name, values in changed.items():
        for value in values:
            yield _with(layout, name, value)
    for i, region in enumerate(layout.regions):
        for name in ("offset", "layer_stride", "block_stride", "head_stride"):
            for wrong in (
                -32,
                1,
                layout.nbytes,
                1 << 62,
                ((1 << 63) - 1) // 32 * 32,
                int(rng.integers(1, 1 << 62)) | 1,
                1 << 63,
            ):
                if (
                    name in ("offset", "block_stride")
                    or region.past_head - region.first_head > 1
                    or wrong < 0
                    or wrong % 32
                ):
                    regions = (*layout.regions[:i], _with(region, name, wrong), *layout.regions[i + 1 :])
                    yield _with(layout, "regions", regions)


def _with(struct: Any, name: str, value: object) -> Any:
    return type(struct)(*[value if field == name else getattr(struct, field) for field in struct.__struct_fields__])


def same(memory: KvMemory, other: KvMemory, table: Sequence[int], other_table: Sequence[int], tokens: int) -> bool:
    """Whether two memories hold the same pages of a sequence, by their digests, counted in blocks of the first."""
    pages = -(-tokens // memory.layout.block_size)
    return memory.digests(table, 0, pages, tokens) == other.digests(
        other_table, 0, pages, tokens, memory.layout.block_size
    )
