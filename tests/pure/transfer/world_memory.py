"""Memory of the played engines: for every position a value that stands for its keys and values, and who may see that it
is used again.
"""

from __future__ import annotations

import functools
import hashlib

from homenode.compute.kv_memory import KvLayout, KvRegion
from homenode.transfer.state.pages import page_count

HEADS = 2


def layout_of(block_size: int, blocks: int) -> KvLayout:
    region = KvRegion(0, HEADS, 0, 0, 0, 0)
    return KvLayout(1, HEADS, 16, block_size, "float32", 64, blocks, 0, (region,))


@functools.cache
def value(prompt: tuple[int, ...], position: int) -> int:
    """What stands for the keys and values of a position: it depends on all tokens up to it."""
    return hash(prompt[: position + 1])


@functools.cache
def identities(prompt: tuple[int, ...], page_tokens: int) -> list[bytes]:
    n = len(prompt) - 1
    ends = [min((page + 1) * page_tokens, n) for page in range(page_count(n, page_tokens))]
    return [hashlib.blake2b(repr(prompt[:end]).encode(), digest_size=16).digest() for end in ends]


def digest(values: list[int | None]) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=8 * HEADS).digest()


class Memory:
    """Values by block and position; None: garbage. Outlives the process that made it."""

    def __init__(self, name: bytes, layout: KvLayout) -> None:
        self.id = name
        self.layout = layout
        self.values: list[list[int | None]] = [[None] * layout.block_size for _ in range(layout.blocks)]
        self.epochs = [0] * layout.blocks
        self.scribbles = 0
        self.shown: dict[int, int] = {}  # the epochs under which blocks were announced to others

    def reused(self, block: int) -> None:
        """Whoever still reads it must be able to see that."""
        assert self.shown.get(block) != self.epochs[block], (
            "a block is used again under the epoch it was announced with"
        )

    def scribble(self, block: int) -> None:
        self.reused(block)
        self.scribbles += 1
        self.values[block] = [-self.scribbles] * self.layout.block_size

    def read(self, table: list[int], position: int, page_tokens: int) -> int | None:
        block = table[position // page_tokens]
        return self.values[block][position % page_tokens]

    def write(self, table: list[int], position: int, what: int | None) -> None:
        size = self.layout.block_size
        self.values[table[position // size]][position % size] = what
