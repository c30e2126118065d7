"""The place of a matrix in a file."""

from __future__ import annotations

from dataclasses import dataclass

from homenode.dtypes import DType


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
