"""The layout of KV memory, so that another process can find a token's keys and values in it; and what can be done
with it. Fit for the wire.

The unit is the *tile*: keys (or values) of 16 tokens of one head of one layer, `tile_bytes` long, in the form of
csrc/kv/cache.h. Within a block a head's keys come first, then its values, if they are kept: sides * block_size
/ 16 tiles in one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

TILE_TOKENS = 16


class KvRegion(msgspec.Struct, frozen=True, array_like=True):
    """Heads first_head .. past_head - 1 of layers first_layer .. past_layer - 1: head h of block b in layer l begins at
    offset + (l - first_layer) * layer_stride + b * block_stride + (h - first_head) * head_stride, in bytes from the
    beginning of the memory's file.
    """

    first_head: int
    past_head: int
    offset: int
    layer_stride: int
    block_stride: int
    head_stride: int
    node: int = -1  # NUMA node, -1: unknown or several
    first_layer: int = 0
    past_layer: int = -1  # -1: all from the first on


class KvLayout(msgspec.Struct, frozen=True, array_like=True):
    """Everything needed to address a KV memory. Every head of every layer is in a region; one that is in several (of
    ranks that share it) is read from the first of them, and written to all.
    """

    layers: int
    kv_heads: int
    head_dim: int
    block_size: int
    dtype: str
    tile_bytes: int
    blocks: int
    nbytes: int  # of the file
    regions: tuple[KvRegion, ...]
    sides: int = 2  # 1: keys alone

    @property
    def head_bytes(self) -> int:
        """Return the bytes of a head of a block."""
        return self.sides * (self.block_size // TILE_TOKENS) * self.tile_bytes

    @property
    def block_bytes(self) -> int:
        """Return the bytes of a block over all layers and heads, each counted once."""
        return self.layers * self.kv_heads * self.head_bytes

    def layers_of(self, region: KvRegion) -> tuple[int, int]:
        """The first layer of one of its regions, and one past the last."""
        return region.first_layer, self.layers if region.past_layer < 0 else region.past_layer

    def holds(self, region: KvRegion) -> int:
        """Heads of layers in a region."""
        first, past = self.layers_of(region)
        return (past - first) * (region.past_head - region.first_head)

    @property
    def has_copies(self) -> bool:
        """Return whether a head is in several regions."""
        return sum(map(self.holds, self.regions)) > self.layers * self.kv_heads


class KvMemory(Protocol):
    """KV memory that can be copied from, to, and mapped by others (`compute.native.kv_memory` makes them)."""

    @property
    def layout(self) -> KvLayout:
        """Return where everything is."""

    @property
    def fd(self) -> int:
        """The memfd behind it; -1 when it is private to this process, or another process's that is not to
        be passed on.
        """

    @property
    def writable(self) -> bool:
        """Return whether it can be a target of copies, and its pieces be written."""

    def digests(
        self, table: Sequence[int], first_page: int, pages: int, tokens: int, page_tokens: int | None = None
    ) -> list[bytes]:
        """One for each page: 8 bytes for each KV head, over that head's tiles of all layers, wherever they lie.

        `table`: the blocks of a sequence of `tokens` positions, from its first; tiles wholly at or past position
        `tokens` do not count. A page has `page_tokens` positions, those of a block unless that is given. A page with a
        block of -1 has no digest: b"".
        """

    def pieces(self, block: int, tiles: int) -> list[memoryview]:
        """The parts of a block that hold its first `tiles` tiles of keys and of values, in the order in which they go
        over a wire: layer by layer, head by head, keys, values. Parts that are neighbours in memory are one.
        """


class EpochWords(Protocol):
    """A uint64 for each block of a KV memory, in a memfd of its own. The memory's owner changes a block's word before
    the block is used for something else.
    """

    @property
    def fd(self) -> int:
        """The memfd behind them; -1 when they are another process's."""

    def __len__(self) -> int: ...

    def read(self, block: int) -> int:
        """The word of a block."""

    def hold(self, blocks: Sequence[int], epochs: Sequence[int]) -> bool:
        """Return whether the words of these blocks are those. What was read of the blocks before is what they were
        then, what is read after it, too.
        """

    def write(self, blocks: Sequence[int], epochs: Sequence[int]) -> None:
        """Set the words of some blocks; seen by others before anything that is written or sent afterwards."""


class Copier(Protocol):
    """The copy loop (native: `compute.native.kv_memory.copy_kv`)."""

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
        epochs: tuple[EpochWords, Sequence[int]] | None = None,
        page_tokens: int | None = None,
    ) -> list[bytes] | None:
        """Copy pages first_page .. first_page + pages - 1 of a sequence of `tokens` positions and return their digests
        (as `digests` of the source, of the copied heads only).

        Both tables are of blocks, for the whole sequence; the blocks may be of different sizes. A page is a block of
        the source unless `page_tokens` is given; one with a source block of -1 is not copied. `epochs`: the source's
        epoch words, one for each of its blocks, and what they must be, before and after, for pages first_page,
        first_page + 1, ...; None is returned when one was not (what was written is then worth nothing).
        """
