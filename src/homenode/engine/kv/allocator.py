"""The running sequences' side of the KV memory: giving handles and blocks, growing, publishing, taking back.

Blocks of an allocation that ended while a step containing it was in flight are taken back when that step is done, not
before: the step still writes to them.
"""

from __future__ import annotations

from collections.abc import Iterator

from homenode.engine.kv.blocks import BlockPool
from homenode.engine.kv.chunks import ChunkTable
from homenode.engine.kv.prefix import PrefixCache
from homenode.engine.kv.sequence import BlockAllocation, Sequence
from homenode.engine.kv.states import SlotAllocation, StatePool


class KvAllocator:
    """Makes and ends allocations; every owned block of the pool is owned by one of them, or by a hand-over of KV
    (`exports`, `imports`).
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool,
        hash_seed: bytes | None = None,
        chunks: ChunkTable | None = None,
        states: StatePool | None = None,
        state_pages: int = 0,
        whole_pages: bool = False,
        group_blocks: int = 1,
    ) -> None:
        """`states`: of a model whose layers keep a state; None: none does. `state_pages`: KV blocks in which a state is
        handed over, behind those of keys and values; 0: none is. `whole_pages`: whole blocks are handed over.
        `group_blocks`: see `BlockPool`.
        """
        self.block_size, self.state_pages, self.whole_pages = block_size, state_pages, whole_pages or state_pages > 0
        self.pool = BlockPool(num_blocks, chunks, group_blocks)
        self.states = self.pool.states = states
        self.cache = PrefixCache(self.pool, block_size, enabled=enable_prefix_caching, seed=hash_seed)
        # Keys whose pages nobody here reads in place any more; their source has yet to be told.
        self.unused: list[str] = []
        self.ends: list[int] = []  # handles the worker has yet to be told are gone
        self.completed_through = -1  # the number of the newest step that is not in flight any more
        self._next_seq = 0
        self._leaving: dict[int, BlockAllocation] = {}  # ended, but in a step in flight

    def blocks_for(self, positions: int) -> int:
        """Blocks that hold this many positions."""
        return -(-positions // self.block_size)

    def handed_over(self, positions: int) -> int:
        """Return what a hand-over of so many positions counts as: where it is of whole blocks, all of those, and those
        of the state, too.
        """
        if not self.whole_pages:
            return positions
        return (self.blocks_for(positions) + self.state_pages) * self.block_size

    def left_of(self, sequence: Sequence) -> int:
        """Tokens that a waiting sequence would have to compute now; 0 of one whose answer was begun."""
        if sequence.num_outputs:
            return 0
        hits = [] if sequence.scoring else self.cache.lookup(sequence.chain, sequence.tokens)
        return max(1, sequence.prefill_target - len(hits) * self.block_size)

    def propose(self, sequence: Sequence) -> BlockAllocation:
        """The allocation a waiting sequence would get now, with the blocks found in the cache. Nothing is taken yet."""
        hits = [] if sequence.scoring else self.cache.lookup(sequence.chain, sequence.tokens)
        state = None
        if self.states is not None:
            # A step has to come out with the state after the last position, so at least that is computed.
            hits = hits[: max(0, sequence.prefill_target - 1) // self.block_size]
            state = self._propose_state(self.states, sequence, len(hits))
            hits = hits[: state.snapshot_at // self.block_size]
        found = len(hits) * self.block_size
        return BlockAllocation(
            seq=-1,
            blocks=hits,
            scheduled=found,
            computed=found,
            prefill_target=sequence.prefill_target,
            first_unscored=len(sequence.scores) - 1 if sequence.scoring else sequence.num_prompt,
            published=len(hits),
            state=state,
        )

    def _propose_state(self, states: StatePool, sequence: Sequence, hits: int) -> SlotAllocation:
        """Return what it would get of the state memory: the last snapshot within the blocks that were found, and
        snapshots to be taken at the last block end that an equal prompt would look up, where a lookup found more KV
        than state, every `interval` positions, and spare ones.
        """
        size, last = self.block_size, (len(sequence.tokens) - 1) // self.block_size
        if not self.cache.enabled:
            return SlotAllocation()
        digests = sequence.chain.of(sequence.tokens, last)
        found = states.find(digests[:hits])
        ends = {last, hits, *range(0, last + 1, states.interval // size)}
        spare = {1 << power for power in range(last.bit_length())} - ends
        return SlotAllocation(
            origin=digests[found - 1] if found else None,
            snapshot_at=found * size,
            uncovered=(hits - found) * size,
            wanted=[(end * size, digests[end - 1]) for end in sorted(ends | spare) if end > found],
            spare=frozenset(digests[end - 1] for end in spare),
        )

    def leads_soon(self, sequence: Sequence, proposal: BlockAllocation) -> bool:
        """Return whether a running sequence is about to take a snapshot from which this one could go on later than from
        what is there now: prompts that are equal, or begin alike, are computed once.
        """
        if self.states is None or proposal.state is None or sequence.scoring or not self.cache.enabled:
            return False
        last = (len(sequence.tokens) - 1) // self.block_size
        return self.states.awaits(sequence.chain.between(sequence.tokens, proposal.scheduled // self.block_size, last))

    def admit(self, sequence: Sequence, proposal: BlockAllocation, spare: int) -> bool:
        """Give the proposal a handle and the blocks of all known tokens, or return False, having taken nothing, if they
        are not free.

        One more token and `spare` blocks must fit as well, or the sequence would soon be preempted. Taking all blocks
        at once keeps a prompt in one piece and means that a prefill, once begun, never runs out of memory.
        """
        if self.states is not None and not self.states.num_available:
            return False
        pages = self.state_pages if sequence.kv_export is not None else 0
        needed = self.blocks_for(len(sequence.tokens) + (not sequence.request.pools)) + spare + pages
        blocks = self.take(proposal.blocks, proposal.prefill_target, needed)
        if blocks is None:
            return False
        proposal.blocks = blocks
        proposal.state_pages = self.pool.allocate(pages, blocks[-1], len(blocks)) if pages else []
        if self.states is not None and proposal.state is not None:
            self.states.begin(proposal.state)
        self.start(sequence, proposal)
        return True

    def take(self, hits: list[int], positions: int, needed: int, in_place: int = 0) -> list[int] | None:
        """Blocks for this many positions, of which `hits` are in the cache already, and the `in_place` after them are
        to be read elsewhere (-1). None, having taken nothing, if `needed` blocks, all these included, are not to be
        had.
        """
        there = len(hits) + in_place
        if needed - there > self.pool.num_free - self.pool.num_unused(hits):
            return None
        self.pool.acquire(hits)
        return [
            *hits,
            *[-1] * in_place,
            *self.pool.allocate(self.blocks_for(positions) - there, hits[-1] if hits else -1, there),
        ]

    def start(self, sequence: Sequence, allocation: BlockAllocation) -> None:
        """Begin an allocation whose blocks are there already."""
        allocation.seq = self._next_seq
        allocation.last = sequence.last
        self._next_seq += 1
        if not allocation.placed:  # blocks that a store brought ahead are described now
            self.cache.describe(sequence.chain, sequence.tokens, allocation.published)
        sequence.allocation = allocation

    def grow(self, allocation: BlockAllocation) -> bool:
        """Add the block of its next position if it lacks one. False when none is free, or the machine has no memory for
        one.
        """
        if allocation.scheduled < len(allocation.blocks) * self.block_size:
            return True
        while self.pool.num_free:
            block = self.pool.allocate(1, allocation.blocks[-1], len(allocation.blocks))
            if self.pool.secure(block):
                allocation.blocks += block
                return True
            self.pool.release(block)  # the next one comes out of the memory there is, if it comes at all
        return False

    def extend(self, allocation: BlockAllocation, count: int) -> int:
        """Add the blocks of its next `count` positions as far as empty ones go: nobody gives way for what may be of no
        use, and nothing cached is given up. For how many of these positions it has blocks.
        """
        lacking = self.blocks_for(allocation.scheduled + count) - len(allocation.blocks)
        if lacking > 0 and (some := min(lacking, self.pool.num_empty)):
            blocks = self.pool.allocate(some, allocation.blocks[-1], len(allocation.blocks))
            if self.pool.is_present(blocks):
                allocation.blocks += blocks
            else:
                self.pool.release(blocks)
        return min(count, len(allocation.blocks) * self.block_size - allocation.scheduled)

    def truncate(self, allocation: BlockAllocation, positions: int) -> None:
        """Cut it back to so many positions: what was computed behind them is of no use. No step in flight contains it.
        Its state is the one after these positions again.
        """
        kept = self.blocks_for(positions)
        if kept < len(allocation.blocks):
            self.pool.release(allocation.blocks[kept:])
            del allocation.blocks[kept:]
            allocation.sent_blocks = min(allocation.sent_blocks, kept)
        if self.states is not None and allocation.state is not None:
            self.states.roll_back(allocation.state, positions)
        allocation.scheduled = positions
        allocation.drafted = 0
        allocation.unchecked_until = -1

    def secure(self, allocation: BlockAllocation, count: int) -> bool:
        """See that the blocks of its next `count` positions have memory. False when the machine has not enough."""
        first, past = allocation.scheduled // self.block_size, self.blocks_for(allocation.scheduled + count)
        return self.pool.secure(allocation.blocks[first:past])

    def take_ahead(self, running: int) -> None:
        """Have memory taken before it is needed: a block for each of those who run, a little in every step."""
        if self.pool.chunks is not None:
            self.pool.chunks.take_ahead(running + 1, 1 + running // self.block_size)

    def end(self, sequence: Sequence) -> None:
        """End the sequence's allocation, if it has one: its blocks come back now or with the last step in flight that
        contains it.
        """
        allocation = sequence.allocation
        if allocation is None:
            return
        sequence.allocation = None
        allocation.ended = True
        if allocation.started:
            self.ends.append(allocation.seq)
        sequence.last_step = allocation.last_step
        if allocation.last_step > self.completed_through:
            self._leaving[allocation.seq] = allocation
        else:
            self._release(allocation)

    def finish_step(self, allocation: BlockAllocation) -> None:
        """The step that landed contained it. Takes the blocks back if that was what its end waited for."""
        if allocation.ended and allocation.last_step <= self.completed_through and allocation.seq in self._leaving:
            del self._leaving[allocation.seq]
            self._release(allocation)

    def in_flight(self, sequence: Sequence) -> bool:
        """Return whether a sequence that waits is in a step in flight, from before it had to."""
        return sequence.last_step > self.completed_through

    def _release(self, allocation: BlockAllocation) -> None:
        self.pool.release(self.pool.own(allocation.blocks))
        self._release_pages(allocation)
        if self.states is not None and allocation.state is not None:
            self.states.release(allocation.state)
        if allocation.placed:
            self.unused.append(allocation.placed)

    def _release_pages(self, allocation: BlockAllocation) -> None:
        self.pool.release(allocation.state_pages)
        allocation.state_pages = []

    def publish(self, sequence: Sequence, allocation: BlockAllocation) -> None:
        """Let others find the blocks that were filled by steps that are done; not those behind pages of another engine,
        which nobody finds. The blocks in which its state came are of no use any more.
        """
        if allocation.state_pages and sequence.kv_export is None and allocation.decoding:
            self._release_pages(allocation)
        if allocation.placed:
            return
        allocation.published = self.cache.publish(
            sequence.chain, sequence.tokens, allocation.blocks, allocation.published, allocation.computed
        )
        if self.states is None or (state := allocation.state) is None:
            return
        if state.copying and allocation.started:
            self.states.end_copying(state)
        if state.writing:
            digests = sequence.chain.of(sequence.tokens, allocation.published)
            self.states.publish(state, digests, allocation.prefill_target, self.pool.digests)

    def num_returning(self) -> int:
        """Blocks that steps in flight will bring back."""
        return sum(self.num_exclusive(allocation) for allocation in self._leaving.values())

    def num_exclusive(self, allocation: BlockAllocation) -> int:
        """Blocks that would become available if it ended."""
        return self.pool.num_exclusive(self.pool.own(allocation.blocks))

    def leaving(self) -> Iterator[BlockAllocation]:
        """Allocations that ended but still own blocks."""
        return iter(self._leaving.values())

    def recompute_cost(self, sequence: Sequence) -> int:
        """Tokens that would be computed again if the sequence lost its blocks; what it shares with others would stay in
        the cache.
        """
        allocation = sequence.allocation
        if allocation is None:
            return 0
        if allocation.state is not None:
            return allocation.scheduled - allocation.state.snapshot_at
        shared = len(self.pool.own(allocation.blocks)) - self.num_exclusive(allocation)
        return max(0, allocation.scheduled - shared * self.block_size)

    @property
    def usage(self) -> float:
        """Share of the blocks that is owned, 0 to 1."""
        return self.pool.num_owned / self.pool.num_blocks
