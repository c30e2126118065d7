"""The batches of successive steps. Most steps carry on where the one before stopped: the same sequences, each one token
further.

Such a batch is made from the one before it by adding ones, because nothing computes while a batch is made.
"""

from __future__ import annotations

from collections.abc import Sequence

from homenode.compute.ops import StepArrays
from homenode.engine.step import StepItem
from homenode.engine.worker.batch import Batch, add_state, block_table, build_batch
from homenode.engine.worker.sequences import SequenceTable
from homenode.model.pooling import PoolingKind


class Batches:
    """Makes the batch of each step. `drawn` is to be called once its tokens were drawn and appended, `forget` when
    sequences come or go.
    """

    def __init__(self, table: SequenceTable, pooling: PoolingKind | None = None, *, takes_rows: bool = True) -> None:
        """`pooling`, `takes_rows`: see `build_batch`."""
        self._table, self._pooling, self._takes_rows = table, pooling, takes_rows
        self._last: Batch | None = None  # if it only decoded and its tokens were appended
        self._ends: list[int] = []  # of the last batch, in its order

    def build(self, items: Sequence[StepItem]) -> Batch:
        """The batch of the next step. Raises what `build_batch` raises."""
        last, self._last = self._last, None  # what fails from here on leaves nothing to carry on with
        if last is not None and self._carries_on(last, items):
            self._ends = [end + 1 for end in self._ends]
            return self._continued(last, items)
        self._ends = [item.start + item.count for item in items]
        return build_batch(items, self._table, self._pooling, takes_rows=self._takes_rows)

    def drawn(self, batch: Batch, items: Sequence[StepItem]) -> None:
        """The step of `batch`, made from `items`, is done."""
        if not batch.spans and len(batch.sampled) == len(items) == len(batch.arrays.ids):
            self._last = batch

    def forget(self) -> None:
        """The next batch is made from nothing."""
        self._last = None

    def _carries_on(self, last: Batch, items: Sequence[StepItem]) -> bool:
        """Return whether these are the sequences of the last batch, in its order, each with its next position and the
        block that needs.
        """
        if len(items) != len(last.sampled):
            return False
        size = self._table.block_size
        for item, seq, end in zip(items, last.sampled, self._ends, strict=True):
            if item.seq != seq or item.start != end or item.count != 1 or not item.draws or item.score_from >= 0:
                return False
            if end % size == 0 and not item.new_blocks:
                return False
        return True

    def _continued(self, last: Batch, items: Sequence[StepItem]) -> Batch:
        before, slots, table = last.arrays, last.row_slots, self._table
        ends, blocks = before.context_len + 1, before.block_table
        grown = [(i, item.new_blocks) for i, item in enumerate(items) if item.new_blocks]
        if grown:
            for i, new in grown:
                table.add_blocks(int(slots[i]), new)
            blocks = block_table(slots, ends, table)
        arrays = StepArrays(
            table.last_token[slots], before.positions + 1, before.query_start, ends, blocks, before.sample_rows
        )
        arrays.adapters = before.adapters
        if before.rope_positions is not None:
            arrays.rope_positions = before.rope_positions + 1
        if table.has_state:
            add_state(arrays, items, slots, table)
        return Batch(arrays, slots, last.sampled, last.spans)
