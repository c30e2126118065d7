"""At a sender: blocks that another engine reads, or that are being sent to it.

A block that the agent was told of belongs to an export until the agent returns it, whatever becomes of its request.
Only complete pages are told of, and nobody writes to a complete page again: it stays right when its request is
preempted, aborted, or lost with a failed step.
"""

from __future__ import annotations

from collections.abc import Iterator

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.sequence import BlockAllocation, KvExport, Sequence
from homenode.transfer.scheduler_events import Abandoned, Computed, SendWanted


class KvExports:
    """All exports by ticket."""

    def __init__(self, allocator: KvAllocator) -> None:
        self._allocator = allocator
        self._pool = allocator.pool
        self.by_ticket: dict[str, KvExport] = {}

    def __contains__(self, ticket: str) -> bool:
        return ticket in self.by_ticket

    def find(self, ticket: str) -> KvExport | None:
        """The export of a ticket, if there is one."""
        return self.by_ticket.get(ticket)

    def open(self, sequence: Sequence, compute_s: float = 0.0) -> SendWanted:
        """Begin the export of a request whose ticket is not in use. `compute_s`: see `SendWanted`."""
        kv = sequence.request.kv
        assert kv is not None  # asked for by its ticket
        tokens = len(sequence.tokens) - 1
        sequence.kv_export = self.by_ticket[kv.ticket] = KvExport(kv.ticket, sequence, tokens)
        identities = sequence.chain.identities(sequence.tokens, tokens, self._allocator.state_pages)
        return SendWanted(kv.ticket, kv.peer, self._allocator.handed_over(tokens), identities, compute_s)

    def export_complete(self, kv_export: KvExport, allocation: BlockAllocation) -> Computed | None:
        """What to tell of the pages that have become complete; None: nothing new. Pages told already, from an earlier
        stay, are not told again.
        """
        last = allocation.computed >= kv_export.tokens
        size = self._allocator.block_size
        complete = self._allocator.blocks_for(kv_export.tokens) if last else allocation.computed // size
        if kv_export.closed or (complete <= kv_export.reported and not last):
            return None
        first, blocks = kv_export.reported, allocation.blocks[kv_export.reported : complete]
        if last:
            blocks += allocation.state_pages
        self._pool.acquire(blocks)
        kv_export.blocks += blocks
        kv_export.reported = max(kv_export.reported, complete)
        kv_export.closed = last
        return Computed(kv_export.ticket, first, blocks, last)

    def end(self, sequence: Sequence, reason: str) -> Abandoned | None:
        """The request has ended; what to tell if that was too early. What was told of stays lent."""
        kv_export, sequence.kv_export = sequence.kv_export, None
        if kv_export is None:
            return None
        kv_export.sequence = None
        if not kv_export.blocks:
            self.by_ticket.pop(kv_export.ticket, None)
        return None if kv_export.closed else Abandoned(kv_export.ticket, reason)

    def returned(self, ticket: str) -> KvExport | None:
        """Nobody reads the blocks of a ticket any more. Its export, which is over; None if there was none."""
        kv_export = self.by_ticket.pop(ticket, None)
        if kv_export is not None:
            self._pool.release(kv_export.blocks)
            kv_export.blocks = []
            kv_export.closed = True
        return kv_export

    def hold_blocks(self) -> bool:
        """Whether any block is lent."""
        return any(kv_export.blocks for kv_export in self.by_ticket.values())

    def tables(self) -> Iterator[list[int]]:
        """The blocks of each export."""
        return (kv_export.blocks for kv_export in self.by_ticket.values())
