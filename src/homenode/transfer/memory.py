"""How KV memory is laid out, so that another process can find a token's keys and values in it. Fit for the wire.

The unit is the *tile*: keys (or values) of 16 tokens of one head of one layer, `tile_bytes` long, in the form of csrc/kernels/kv_cache.h. Within a
block a head's keys come first, then its values: 2 * block_size / 16 tiles in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

TILE_TOKENS = 16


class KvRegion(msgspec.Struct, frozen=True, array_like=True):
    """Heads first_head .. past_head - 1: head h of block b in layer l begins at
    offset + l * layer_stride + b * block_stride + (h - first_head) * head_stride, in bytes from the beginning of the memory's file."""

    first_head: int
    past_head: int
    offset: int
    layer_stride: int
    block_stride: int
    head_stride: int
    node: int = -1  # NUMA node, -1: unknown or several


class KvLayout(msgspec.Struct, frozen=True, array_like=True):
    """Everything needed to address a KV memory."""

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    tile_bytes: int
    blocks: int
    nbytes: int  # of the file
    regions: tuple[KvRegion, ...]

    @property
    def block_bytes(self) -> int:
        """Of a block over all layers and heads."""
        return self.layers * self.kv_heads * 2 * (self.block_size // TILE_TOKENS) * self.tile_bytes


class KvMemory(Protocol):
    """KV memory that can be copied from, to, and mapped by others (native; `compute.kv_memory` makes them)."""

    @property
    def layout(self) -> KvLayout: ...

    @property
    def fd(self) -> int:
        """The memfd behind it; -1 when it is private to this process."""

    def digests(self, table: Sequence[int], first_page: int, pages: int, tokens: int) -> list[bytes]:
        """One for each page: 8 bytes for each KV head, over that head's tiles of all layers. `table[i]` is the block of page i; a page is a block of
        this memory; tiles wholly at or past position `tokens` do not count."""

    def pieces(self, block: int, tiles: int) -> list[memoryview]:
        """The parts of a block's first `tiles` tiles, in the order in which they go over a wire: layer by layer, head by head, keys, values."""


class Copier(Protocol):
    """The copy loop (native)."""

    def __call__(
        self,
        target: KvMemory,
        target_table: Sequence[int],
        source: KvMemory,
        source_table: Sequence[int],
        first_page: int,
        pages: int,
        tokens: int,
        source_heads: tuple[int, int] | None = None,
        target_first_head: int = 0,
        epochs: tuple[memoryview, Sequence[int]] | None = None,
    ) -> list[bytes] | None:
        """Copy pages first_page .. first_page + pages - 1 of a sequence of `tokens` positions and return their digests (as `digests` of the source).

        A page is a block of the source; the target's blocks may be of another size. `epochs`: the source's uint64 epoch words, one for each of its
        blocks, and what they must be, before and after; None is returned when one was not (what was written is then worth nothing).
        """
