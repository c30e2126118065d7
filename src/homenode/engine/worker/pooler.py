"""Makes one vector of each text: collects the rows that count, over several steps where a prompt is cut, and takes
their one row through the model's head.

Sums are in float64, in the order of positions: how a prompt was cut changes no bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from homenode.compute.ops import FloatArray, IntArray
from homenode.engine.step import Pooled, StepItem
from homenode.model.pooling import PoolingKind
from homenode.model.weights.pooling_head import LoadedHeadLayer

Row = npt.NDArray[np.float32] | npt.NDArray[np.float64]


def pooled_counts(kind: PoolingKind, items: Sequence[StepItem]) -> list[int]:
    """Return how many rows of each item count."""
    if kind == "mean":
        return [item.count for item in items]
    return [int(item.start == 0 if kind == "cls" else item.draws > 0) for item in items]


def pooled_rows(kind: PoolingKind, items: Sequence[StepItem], query_start: IntArray) -> IntArray:
    """The rows of a step that count, ascending."""
    if kind == "mean":
        return np.arange(query_start[-1], dtype=np.int32)
    counts = np.array(pooled_counts(kind, items), np.bool_)
    return (query_start[:-1] if kind == "cls" else query_start[1:] - 1)[counts].astype(np.int32)


class Pooler:
    """The pooler of a worker that answers. For one thread."""

    def __init__(self, kind: PoolingKind, head: Sequence[LoadedHeadLayer]) -> None:
        self.kind = kind
        self._head = tuple(head)
        self._kept: dict[int, Row] = {}  # of sequences whose text is not at its end: the row, or the sum so far

    def take(self, rows: FloatArray, items: Sequence[StepItem]) -> list[Pooled]:
        """The vectors of the texts that end in this step, whose `rows` [those of `pooled_rows`, columns] these are."""
        found, at = [], 0
        for item, count in zip(items, pooled_counts(self.kind, items), strict=True):
            row = self._joined(self._kept.pop(item.seq, None), rows[at : at + count])
            at += count
            if row is None:
                continue
            if item.draws:
                found.append(Pooled(item.seq, self._vector(row, item.start + item.count)))
            else:
                self._kept[item.seq] = row
        return found

    def end(self, seq: int) -> None:
        """Forget a sequence, if it is known."""
        self._kept.pop(seq, None)

    def _joined(self, kept: Row | None, rows: FloatArray) -> Row | None:
        if self.kind != "mean":
            return np.array(rows[0]) if len(rows) else kept
        parts = rows.astype(np.float64)
        total: Row = np.add.reduce(parts if kept is None else np.concatenate([kept[None], parts]), axis=0)
        return total

    def _vector(self, row: Row, tokens: int) -> bytes:
        """Float32, as they lie in memory; nothing where one is not a finite number."""
        x = np.asarray(row / tokens if self.kind == "mean" else row, np.float32)
        for layer in self._head:
            x = layer.apply(x)
        return np.ascontiguousarray(x, "<f4").tobytes() if bool(np.isfinite(x).all()) else b""
