"""The blocks that can be found in one place, as a tree of beginnings, and what readers were told of them. Pure.

A block is told only as long as all blocks before it are: without them nobody finds it. So what readers have been told
is a tree at any moment, and a replay of what is held is told from the beginnings on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from homenode.engine.inputs import ROW_DIGEST_BYTES, row_digests_in
from homenode.engine.kv.block_journal import BlockContent
from homenode.engine.kv_events.events import BlockRemoved, BlockStored, public_hash


@dataclass(frozen=True)
class BlockPlace:
    """The words that readers know a place by: where it is, of which group of layers, and how large a block is."""

    medium: str
    block_size: int
    group: int = 0
    kind: str = "full_attention"
    window: int | None = None


class HeldBlocks:
    """The blocks of one place. Every change answers with the blocks that are to be told of now, in order."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, BlockContent] = {}
        self._children: dict[bytes | None, dict[bytes, None]] = {}
        self.told: dict[bytes, None] = {}

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._blocks

    @property
    def digests(self) -> Collection[bytes]:
        """Return those of all blocks, told or not."""
        return self._blocks.keys()

    @property
    def blocks(self) -> Collection[BlockContent]:
        """Return all blocks, told or not."""
        return self._blocks.values()

    def content(self, digest: bytes) -> BlockContent | None:
        """Return what a block is of, if it is here."""
        return self._blocks.get(digest)

    def add(self, block: BlockContent) -> list[BlockContent]:
        """A block can be found; with it those that waited for it."""
        if block.digest in self._blocks:
            return []
        self._blocks[block.digest] = block
        self._children.setdefault(block.parent, {})[block.digest] = None
        if block.parent is not None and block.parent not in self.told:
            return []
        found = list(self._below(block.digest))
        self.told.update(dict.fromkeys(found))
        return [self._blocks[digest] for digest in found]

    def remove(self, digest: bytes) -> list[bytes]:
        """A block cannot be found any more; nor can those behind it."""
        block = self._blocks.get(digest)
        if block is None:
            return []
        gone = [each for each in self._below(digest) if each in self.told]
        for each in gone:
            del self.told[each]
        del self._blocks[digest]
        siblings = self._children[block.parent]
        del siblings[digest]
        if not siblings:
            del self._children[block.parent]
        return gone

    def clear(self) -> None:
        """No block can be found any more."""
        self._blocks, self._children, self.told = {}, {}, {}

    def in_order(self) -> Iterator[BlockContent]:
        """All that were told, each after the one before it."""
        for first in list(self._children.get(None, ())):
            yield from (self._blocks[digest] for digest in self._below(first))

    def _below(self, digest: bytes) -> Iterator[bytes]:
        """A block and all behind it, each after the one before it; a beginning to its end before the next."""
        left = [digest]
        while left:
            digest = left.pop()
            yield digest
            left += reversed(self._children.get(digest, {}))


def stored_events(blocks: Iterable[BlockContent], place: BlockPlace) -> Iterator[BlockStored]:
    """One event for each run of blocks that follow one another."""
    run: list[BlockContent] = []
    for block in blocks:
        if run and block.parent != run[-1].digest:
            yield _stored(run, place)
            run = []
        run.append(block)
    if run:
        yield _stored(run, place)


def removed_event(digests: Iterable[bytes], place: BlockPlace) -> BlockRemoved:
    """One event for all of them."""
    return BlockRemoved([public_hash(digest) for digest in digests], place.medium, place.group)


def _stored(run: list[BlockContent], place: BlockPlace) -> BlockStored:
    parent = run[0].parent
    keys = [_extra_keys(block) for block in run]
    return BlockStored(
        block_hashes=[public_hash(block.digest) for block in run],
        parent_block_hash=None if parent is None else public_hash(parent),
        token_ids=[token for block in run for token in block.tokens],
        block_size=place.block_size,
        lora_id=None,
        medium=place.medium,
        lora_name=None,
        extra_keys=keys if any(keys) else None,
        group_idx=place.group,
        kv_cache_spec_kind=place.kind,
        kv_cache_spec_sliding_window=place.window,
    )


def _extra_keys(block: BlockContent) -> tuple[str, ...] | None:
    """The salt of a first block, and the digests of rows in it."""
    digests = row_digests_in(block.rows)
    rows = (digests[at : at + ROW_DIGEST_BYTES].hex() for at in range(0, len(digests), ROW_DIGEST_BYTES))
    return (*((block.salt,) if block.salt else ()), *rows) or None
