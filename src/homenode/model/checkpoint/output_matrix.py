"""A test whether the output matrix of a folder is the embedding once more, as many files have it although the two are
said to be tied.
"""

from __future__ import annotations

from collections.abc import Mapping

from homenode.model.formats import limits
from homenode.model.formats.bounded_files import read_at
from homenode.model.spec import TensorEntry

_MOST_ROWS = (
    256  # that are compared: matrices that were trained apart differ in all rows, and whole ones are a gigabyte
)


def repeats_embedding(tensors: Mapping[str, TensorEntry]) -> bool:
    """Return whether there is no output matrix, or one with the embedding's bytes."""
    output, embedding = tensors.get(limits.OUTPUT), tensors.get(limits.EMBEDDING)
    if output is None:
        return True
    return embedding is not None and same_values(output, embedding)


def same_values(one: TensorEntry, other: TensorEntry) -> bool:
    """Return whether two matrices have the same bytes, in as many rows spread over them as are compared.

    Of another type or shape it counts as another matrix: where the values are the same all the same, nothing but memory
    is lost.
    """
    if one.coded or other.coded or not one.nbytes:
        return False
    if (one.dtype, one.shape, one.nbytes) != (other.dtype, other.shape, other.nbytes):
        return False
    rows = one.shape[0]
    size = one.nbytes // rows
    return all(
        read_at(one.file, one.offset + row * size, size) == read_at(other.file, other.offset + row * size, size)
        for row in {row * (rows - 1) // max(_MOST_ROWS - 1, 1) for row in range(min(rows, _MOST_ROWS))} | {0, rows - 1}
    )
