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
    """Return whether there is no output matrix, or one with the embedding's bytes, in as many rows spread over it as
    are compared.

    Of another type or shape it counts as another matrix: where the values are the same all the same, nothing but memory
    is lost.
    """
    output, embedding = tensors.get(limits.OUTPUT), tensors.get(limits.EMBEDDING)
    if output is None:
        return True
    if embedding is None or output.coded or embedding.coded or not output.nbytes:
        return False
    if (output.dtype, output.shape, output.nbytes) != (embedding.dtype, embedding.shape, embedding.nbytes):
        return False
    rows = output.shape[0]
    size = output.nbytes // rows
    return all(
        read_at(output.file, output.offset + row * size, size)
        == read_at(embedding.file, embedding.offset + row * size, size)
        for row in {row * (rows - 1) // max(_MOST_ROWS - 1, 1) for row in range(min(rows, _MOST_ROWS))} | {0, rows - 1}
    )
