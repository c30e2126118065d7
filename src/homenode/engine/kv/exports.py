"""At a sender: blocks that another engine reads, or that are being sent to it.

A block that the agent was told of belongs to a loan until the agent returns it, whatever becomes of its request. Only complete pages are told
of, and nobody writes to a complete page again: it stays right when its request is preempted, aborted, or lost with a failed step.
"""

from __future__ import annotations

from collections.abc import Iterator

from homenode.engine.kv.blocks import BlockPool
from homenode.engine.kv.sequence import BlockAllocation, KvExport, Sequence
from homenode.transfer.seam import Abandoned, Computed, SendWanted


class KvExports:
    """All loans by ticket."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._of: dict[str, KvExport] = {}

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._of

    def find(self, ticket: str) -> KvExport | None:
        """The loan of a ticket, if there is one."""
        return self._of.get(ticket)

    def open(self, sequence: Sequence) -> SendWanted:
        """Begin the loan of a request whose ticket is not in use."""
        kv = sequence.request.kv
        assert kv is not None  # asked for by its ticket
        tokens = len(sequence.tokens) - 1
        sequence.loan = self._of[kv.ticket] = KvExport(kv.ticket, sequence, tokens)
        return SendWanted(kv.ticket, kv.peer, tokens, sequence.chain.identities(sequence.tokens, tokens))

    def lend(self, loan: KvExport, residency: BlockAllocation) -> Computed | None:
        """What to tell of the pages that have become complete; None: nothing new. Pages told already, from an earlier stay, are not told again."""
        last = residency.computed >= loan.tokens
        complete = -(-loan.tokens // self._block_size) if last else residency.computed // self._block_size
        if loan.closed or (complete <= loan.told and not last):
            return None
        first, blocks = loan.told, residency.blocks[loan.told : complete]
        self._pool.acquire(blocks)
        loan.blocks += blocks
        loan.told = max(loan.told, complete)
        loan.closed = last
        return Computed(loan.ticket, first, blocks, last)

    def end(self, sequence: Sequence, reason: str) -> Abandoned | None:
        """The request has ended; what to tell if that was too early. What was told of stays lent."""
        loan, sequence.loan = sequence.loan, None
        if loan is None:
            return None
        loan.sequence = None
        if not loan.blocks:
            self._of.pop(loan.ticket, None)
        return None if loan.closed else Abandoned(loan.ticket, reason)

    def returned(self, ticket: str) -> KvExport | None:
        """Nobody reads the blocks of a ticket any more. Its loan, which is over; None if there was none."""
        loan = self._of.pop(ticket, None)
        if loan is not None:
            self._pool.release(loan.blocks)
            loan.blocks = []
            loan.closed = True
        return loan

    def hold_blocks(self) -> bool:
        """Whether any block is lent."""
        return any(loan.blocks for loan in self._of.values())

    def tables(self) -> Iterator[list[int]]:
        """The blocks of each loan."""
        return (loan.blocks for loan in self._of.values())
