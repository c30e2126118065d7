"""Blocks that go out to a source: those that it reads, or that are on their way to it.

A block that the source was told of belongs to an export until the source returns it, whatever becomes of its request.
Only complete pages are told of, and nobody writes to a complete page again: it stays right when its request is
preempted, aborted, or lost with a failed step.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.block_source import BlockSource
from homenode.engine.kv.sequence import BlockAllocation, KvExport, Sequence


class KvExports:
    """All exports by key."""

    def __init__(self, allocator: KvAllocator) -> None:
        self._allocator = allocator
        self._pool = allocator.pool
        self._numbers = itertools.count()
        self.by_key: dict[str, KvExport] = {}

    def __contains__(self, key: str) -> bool:
        return key in self.by_key

    def find(self, key: str) -> KvExport | None:
        """The export of a key, if there is one."""
        return self.by_key.get(key)

    def open(self, source: BlockSource, sequence: Sequence, compute_s: float = 0.0) -> int | None:
        """Begin the export of a request whose key, its ticket, is not in use. Returns as `BlockSource.offer`, which
        has `compute_s`.
        """
        kv = sequence.request.kv
        assert kv is not None  # asked for by its ticket
        tokens = len(sequence.tokens) - 1
        sequence.kv_export = self.by_key[kv.ticket] = KvExport(source, kv.ticket, sequence, tokens)
        identities = sequence.chain.identities(sequence.tokens, tokens, self._allocator.state_pages)
        return source.offer(kv.ticket, kv.peer, self._allocator.handed_over(tokens), identities, compute_s)

    def store(
        self, source: BlockSource, sequence: Sequence, allocation: BlockAllocation, compute_s: float = 0.0
    ) -> None:
        """Give a store the published blocks of a request, from the first on that it has not. `compute_s`: see
        `BlockSource.offer`.
        """
        full = allocation.published
        if not full:
            return
        key, tokens = f"kept/{next(self._numbers)}", full * self._allocator.block_size
        identities = sequence.chain.of(sequence.tokens, full)
        held = source.offer(key, b"", tokens, identities, compute_s)
        slots = self._lacking_states(source, identities)
        if held is None or (held >= full and not slots):
            return
        blocks = allocation.blocks[held:full]
        self._pool.acquire(blocks)
        self.by_key[key] = kv_export = KvExport(source, key, None, tokens, blocks, full)
        kv_export.admitted = kv_export.closed = kv_export.kept = True
        kv_export.slots = [*slots.values()]
        source.store(key, held, [*blocks], True, slots)

    def _lacking_states(self, source: BlockSource, identities: list[bytes]) -> dict[int, int]:
        """Slots of the snapshots behind these blocks that a store has not, which are read from now on: by the number of
        blocks.
        """
        states = self._allocator.states
        if states is None:
            return {}
        counts = [count for count, digest in enumerate(identities, 1) if digest in states.snapshots]
        return {count: states.begin_reading(identities[count - 1]) for count in source.lacks_states(identities, counts)}

    def export_complete(self, kv_export: KvExport, allocation: BlockAllocation) -> None:
        """Tell of the pages that have become complete. Pages told already, from an earlier stay, are not told again."""
        last = allocation.computed >= kv_export.tokens
        size = self._allocator.block_size
        complete = self._allocator.blocks_for(kv_export.tokens) if last else allocation.computed // size
        if kv_export.closed or (complete <= kv_export.reported and not last):
            return
        first, blocks = kv_export.reported, allocation.blocks[kv_export.reported : complete]
        if last:
            blocks += allocation.state_pages
        self._pool.acquire(blocks)
        kv_export.blocks += blocks
        kv_export.reported = max(kv_export.reported, complete)
        kv_export.closed = last
        kv_export.source.store(kv_export.key, first, blocks, last)

    def end(self, sequence: Sequence, reason: str) -> None:
        """End what a request exports; its source is told if that is too early. What was told of stays lent."""
        kv_export, sequence.kv_export = sequence.kv_export, None
        if kv_export is None:
            return
        kv_export.sequence = None
        if not kv_export.blocks:
            self.by_key.pop(kv_export.key, None)
        if not kv_export.closed:
            kv_export.source.abandon(kv_export.key, reason)

    def lose(self, reason: str) -> None:
        """Tell stores that what lies in the blocks they read may be wrong from now on. Other engines see by themselves
        what they get.
        """
        for kv_export in self.by_key.values():
            if kv_export.kept:
                kv_export.source.abandon(kv_export.key, reason)

    def returned(self, key: str) -> KvExport | None:
        """Nobody reads the blocks of a key any more. Its export, which is over; None if there was none."""
        kv_export = self.by_key.pop(key, None)
        if kv_export is not None:
            self._pool.release(kv_export.blocks)
            kv_export.blocks = []
            if self._allocator.states is not None:
                for slot in kv_export.slots:
                    self._allocator.states.end_reading(slot)
            kv_export.slots = []
            kv_export.closed = True
        return kv_export

    def hold_blocks(self) -> bool:
        """Return whether any block is lent."""
        return any(kv_export.blocks or kv_export.slots for kv_export in self.by_key.values())

    def tables(self) -> Iterator[list[int]]:
        """The blocks of each export."""
        return (kv_export.blocks for kv_export in self.by_key.values())
