"""The place of a matrix in a file, and the order of its rows there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from homenode.dtypes import DType

IndexArray = np.ndarray[tuple[int], np.dtype[Any]]


@dataclass(frozen=True)
class StoredMatrix:
    """A [rows, columns] matrix stored as `dtype` at `offset` of an open file.

    `row_bytes`: from the beginning of a row in the file to that of the next, for some columns of a wider matrix; 0:
    rows follow each other. With `permuted_heads` n the stored rows are in GGUF's llama order (each of n heads' halves
    interleaved).
    """

    fd: int
    offset: int
    dtype: DType
    rows: int
    columns: int
    row_bytes: int = 0
    permuted_heads: int = 0

    @property
    def own_row_bytes(self) -> int:
        """Bytes of the wanted columns of a row."""
        return self.dtype.row_bytes(self.columns)

    @property
    def stride(self) -> int:
        """Bytes from a row to the next."""
        return self.row_bytes or self.own_row_bytes


def canonical_rows(rows: int, heads: int) -> IndexArray:
    """Return where each stored row belongs. In GGUF's llama order row 2j + h of each of `heads` heads is its row h *
    half + j; with 0 heads all are in place.
    """
    order: IndexArray = np.arange(rows)
    return order.reshape(heads, 2, -1).swapaxes(1, 2).reshape(-1) if heads else order
