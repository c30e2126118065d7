"""The sequences of requests that are not finished, by what becomes of them next: who runs, and who waits for what."""

from __future__ import annotations

import bisect
from collections.abc import Collection

from homenode.engine.kv.allocator import KvAllocator
from homenode.engine.kv.imports import KvImports
from homenode.engine.kv.sequence import Sequence
from homenode.engine.messages import WaitReason
from homenode.engine.scheduler.order.fair_share import KeyShares
from homenode.engine.scheduler.order.queue import WaitingQueue

_KEPT = 8  # parts of the slots and KV blocks, of which one is left to keys that go first


class SequenceLists:
    """Sequences move between the waiting queue and the running list, which is kept in order of priority and arrival.

    Those that wait for another engine are `waiting_for_kv`, out of the queue. Those whose KV has come from one are
    ready in `kv_imports`.
    """

    def __init__(self, max_num_seqs: int, allocator: KvAllocator, kv_imports: KvImports) -> None:
        """`max_num_seqs`: those that may run."""
        self._max_num_seqs, self._allocator, self._kv_imports = max_num_seqs, allocator, kv_imports
        self.now = 0.0  # when the newest event happened
        self.running: list[Sequence] = []
        self.shares = KeyShares()
        self.waiting = WaitingQueue(self.shares, allocator.left_of)
        self.num_awaited = 0  # requests for whose tokens somebody waits
        self.waiting_for_kv: dict[int, Sequence] = {}  # by request id
        # Admitted, but all it is to compute is in the cache; the scheduler ends it.
        self.nothing_left: list[Sequence] = []
        self.lacks: WaitReason = "turn"  # why the first of the queue has not begun
        self.warnings: list[str] = []  # for the operator; the scheduler passes them on

    @property
    def slots_left(self) -> int:
        """Sequences that may begin to run."""
        return self._max_num_seqs - len(self.running) - len(self._kv_imports.fetching)

    def has_slot(self, key: str) -> bool:
        """Return whether one more sequence of `key` may run. Keys that yield leave some slots to those that
        go first.
        """
        kept = self._max_num_seqs // _KEPT if self.running and self.shares.yields(key) else 0
        return self.slots_left > kept

    def spare_for(self, key: str) -> int:
        """Blocks that a newcomer of `key` leaves: `spare`, and where it yields some for those that go first."""
        spare = self.spare
        return max(spare, self._allocator.pool.num_blocks // _KEPT) if spare and self.shares.yields(key) else spare

    @property
    def spare(self) -> int:
        """Blocks to keep free for the others to grow into: without them a newcomer takes the last block and is
        preempted at the next block boundary.
        """
        return max(1, self._allocator.pool.num_blocks // 100) if self.running else 0

    def run(self, sequence: Sequence) -> bool:
        """Put a sequence that has its allocation among those that run. Returns whether it runs for the first time."""
        bisect.insort(self.running, sequence, key=lambda s: s.order)
        if sequence.admitted:
            return False
        sequence.admitted = True
        sequence.queued_s = max(0.0, self.now - sequence.arrived)
        return True

    def let_followers_go(self) -> None:
        """Let those who waited for another one's KV join the queue, unless they have ended meanwhile."""
        for sequence in self._kv_imports.released:
            if self.waiting_for_kv.pop(sequence.id, None) is not None:
                self.waiting.push(sequence)
        self._kv_imports.released.clear()

    def stop(self, sequence: Sequence) -> None:
        """Take a sequence out of the running list or the queue, wherever it is, and end its allocation on
        the worker.
        """
        if sequence.allocation:
            self.running.remove(sequence)
            self._allocator.end(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        else:
            self.waiting_for_kv.pop(sequence.id, None)

    def requeue(self, sequence: Sequence) -> None:
        """Send a running sequence back to its place in the queue; all its tokens will be computed again."""
        self.stop(sequence)
        self.waiting.push(sequence)

    @property
    def num_waiting(self) -> int:
        """Sequences that do not run, for whatever reason."""
        return len(self.waiting) + len(self.waiting_for_kv) + len(self._kv_imports.ready)

    @property
    def waiting_for(self) -> dict[str, int]:
        """Return how many of them wait for what: those of the queue for what its first one lacks."""
        apart = len(self.waiting_for_kv) + len(self._kv_imports.ready)
        return {reason: number for reason, number in ((self.held_by, len(self.waiting)), ("kv", apart)) if number}

    @property
    def held_by(self) -> WaitReason:
        """Return what the first of the queue lacks."""
        return self.lacks if self.slots_left > 0 else "slots"

    @property
    def ready_kv(self) -> Collection[Sequence]:
        """Return those whose KV has come, and that do not run yet."""
        return self._kv_imports.ready

    @property
    def num_waiting_tokens(self) -> int:
        """Their prompt tokens."""
        apart = (*self.waiting_for_kv.values(), *self._kv_imports.ready)
        return self.waiting.num_prompt_tokens + sum(sequence.num_prompt for sequence in apart)
