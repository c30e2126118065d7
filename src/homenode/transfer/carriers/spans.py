"""Where KV pages lie in the address spaces of two processes: pairs of equal pieces, as few as there can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from homenode.compute.kv_memory import TILE_TOKENS, KvLayout, KvMemory, KvRegion

Addresses = NDArray[np.uint64]


@dataclass(frozen=True)
class Addressed:
    """KV memory by its addresses: `bases` of the regions of `layout`, in the process that has it."""

    layout: KvLayout
    bases: tuple[int, ...]


@dataclass(frozen=True)
class Part:
    """Tiles first .. past - 1 of a block here and of the block there that it corresponds to."""

    here: int
    there: int
    first: int
    past: int


def in_one_piece(layout: KvLayout) -> bool:
    """Whether its regions hold all layers, head after head, as everything here takes for granted."""
    heads = [0, *(region.past_head for region in layout.regions)]
    return all(
        layout.layers_of(region) == (0, layout.layers) and region.first_head == before
        for region, before in zip(layout.regions, heads, strict=False)
    )


def extent(layout: KvLayout, region: KvRegion) -> int:
    """Bytes from a region's first byte to behind its last."""
    heads = region.past_head - region.first_head
    strides = (
        (layout.layers - 1) * region.layer_stride
        + (layout.blocks - 1) * region.block_stride
        + (heads - 1) * region.head_stride
    )
    return strides + layout.head_bytes


def addressed(memory: KvMemory) -> Addressed:
    """This process's own memory: each region is one piece of its address space."""
    layout = memory.layout
    pieces = memory.pieces(0, layout.block_size // TILE_TOKENS)
    begins = (region.first_head * layout.head_bytes for region in layout.regions)
    return Addressed(layout, tuple(_address_at(pieces, begin) for begin in begins))


def _address_at(pieces: Sequence[memoryview], position: int) -> int:
    """Of the byte at this position of the pieces' bytes, one piece after another."""
    for piece in pieces:
        if position < piece.nbytes:
            return int(np.frombuffer(piece, np.uint8).ctypes.data) + position
        position -= piece.nbytes
    raise ValueError("a region that begins behind its memory's first block")


def parts_of(table: Sequence[int], block_size: int, begin: int, end: int) -> list[Part]:
    """Positions begin .. end - 1 of a sequence, by the blocks there of `table`; here they are blocks 0, 1, ... from the
    one that holds `begin`."""
    first = begin // block_size
    found = []
    for index in range(first, -(-end // block_size)):
        at = index * block_size
        span = (max(begin, at) - at) // TILE_TOKENS, -(-(min(end, at + block_size) - at) // TILE_TOKENS)
        if table[index] >= 0:
            found.append(Part(index - first, table[index], *span))
    return found


def pairs(here: Addressed, there: Addressed, parts: Sequence[Part]) -> tuple[Addresses, Addresses]:
    """Descriptors (address, bytes, device 0) of both sides, in the same order; neighbours on both sides are one. Block
    sizes must be equal."""
    columns = [(_addresses(here, part.here, part), _addresses(there, part.there, part)) for part in parts]
    ours = np.concatenate([column[0] for column in columns])
    theirs = np.concatenate([column[1] for column in columns])
    sizes = np.concatenate(
        [np.full(len(column[0]), _piece_bytes(here.layout, part)) for column, part in zip(columns, parts, strict=True)]
    )
    begins = np.ones(len(ours), bool)
    begins[1:] = (ours[1:] != ours[:-1] + sizes[:-1]) | (theirs[1:] != theirs[:-1] + sizes[:-1])
    firsts = np.flatnonzero(begins)
    merged = np.add.reduceat(sizes, firsts)
    return _descriptors(ours[firsts], merged), _descriptors(theirs[firsts], merged)


def _whole(layout: KvLayout, part: Part) -> bool:
    return part.first == 0 and part.past == layout.block_size // TILE_TOKENS


def _piece_bytes(layout: KvLayout, part: Part) -> int:
    """Keys and values of a head lie side by side when all of a block is meant."""
    return (part.past - part.first) * layout.tile_bytes * (layout.sides if _whole(layout, part) else 1)


def _addresses(memory: Addressed, block: int, part: Part) -> NDArray[np.int64]:
    """Of the pieces of a part, layer by layer, head by head, keys before values."""
    layout = memory.layout
    starts = []
    for region, base in zip(layout.regions, memory.bases, strict=True):
        heads = np.arange(region.past_head - region.first_head, dtype=np.int64) * region.head_stride
        starts.append(base + block * region.block_stride + heads[None, :] + _layers(layout, region)[:, None])
    heads_first = np.concatenate(starts, axis=1).reshape(-1)
    if _whole(layout, part):
        return heads_first
    values = (layout.block_size // TILE_TOKENS) * layout.tile_bytes
    begin = heads_first + part.first * layout.tile_bytes
    return np.stack([begin, begin + values][: layout.sides], axis=1).reshape(-1)


def _layers(layout: KvLayout, region: KvRegion) -> NDArray[np.int64]:
    return np.arange(layout.layers, dtype=np.int64) * region.layer_stride


def _descriptors(addresses: NDArray[np.int64], sizes: NDArray[np.int64]) -> Addresses:
    found = np.zeros((len(addresses), 3), np.uint64)
    found[:, 0], found[:, 1] = addresses, sizes
    return found
