"""Programs that give rows beside logits, which blocks that predict read: the layers in one, what makes logits of rows
in another.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from homenode.compute.ops import FloatArray, IntArray, Logits, Program, StepArrays


class RowsAndLogits:
    """`Program` of a model whose last layer's `rows` are read as well: of all positions of the last run."""

    def __init__(self, layers: Program, head: Program) -> None:
        """`layers`: gives the rows of all positions. `head`: gives logits of rows that it receives."""
        self._layers, self._head = layers, head
        self.rows: FloatArray = np.zeros((0, 0), np.float32)

    def run(self, arrays: StepArrays) -> Logits:
        """See `Program.run`; nothing that can be read where no row is sampled."""
        self.rows = np.asarray(self._layers.run(arrays), np.float32)
        adapters = arrays.adapters
        if adapters is not None:
            adapters = np.repeat(adapters, np.diff(arrays.query_start))[arrays.sample_rows]
        return logits_of_rows(self._head, self.rows[arrays.sample_rows], adapters)

    def expert_usage(self) -> npt.NDArray[np.uint64]:
        """See `Program.expert_usage`."""
        return self._layers.expert_usage()


class PredictionProgram:
    """`DraftingProgram` of a block that predicts."""

    behind = 1

    def __init__(self, block: Program, head: Program, columns: int, max_length: int) -> None:
        """`block`: gives rows of all positions. `head`: gives logits of rows that it receives."""
        self._block, self._head = block, head
        self.columns, self.max_length = columns, max_length

    def run(self, arrays: StepArrays) -> tuple[Logits, FloatArray | None]:
        """See `DraftingProgram.run`."""
        rows = np.asarray(self._block.run(arrays), np.float32)[arrays.sample_rows]
        return logits_of_rows(self._head, rows), rows


class DraftModelProgram:
    """`DraftingProgram` of a model of its own."""

    behind = 0

    def __init__(self, program: Program, columns: int, max_length: int) -> None:
        self._program = program
        self.columns, self.max_length = columns, max_length

    def run(self, arrays: StepArrays) -> tuple[Logits, FloatArray | None]:
        """See `DraftingProgram.run`."""
        return self._program.run(arrays), None


def logits_of_rows(head: Program, rows: FloatArray, adapters: IntArray | None = None) -> Any:
    """Return what `head` makes of rows; None where there are none. `adapters`: of each, see `StepArrays.adapters`."""
    count = len(rows)
    if not count:
        return None
    each, ones = np.arange(count + 1, dtype=np.int32), np.ones(count, np.int32)
    nowhere = np.zeros(count, np.int32)
    return head.run(
        StepArrays(
            ids=nowhere,
            positions=nowhere,
            query_start=each,
            context_len=ones,
            block_table=np.zeros((count, 1), np.int32),
            sample_rows=each[:-1],
            hidden=np.ascontiguousarray(rows),
            adapters=adapters,
        )
    )
