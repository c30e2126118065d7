"""Parts of stored tensors as entries of their own: one of several matrices in a stack, some rows of a matrix, a matrix
turned. Nothing is read for it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from homenode.dtypes import BY_NAME
from homenode.model.formats.bounded_files import damaged
from homenode.model.spec import CodedMatrix, TensorEntry

FLOAT32 = BY_NAME["F32"]


def slice_of(entry: TensorEntry, index: int, name: str) -> TensorEntry:
    """Number `index` of the matrices or vectors that are stacked in a tensor [count, ...]."""
    size = entry.nbytes // entry.shape[0]
    shape = entry.shape[1:]
    if (coded := entry.coded) is None:
        return replace(entry, name=name, shape=shape, nbytes=size, offset=entry.offset + index * size)

    def part(stored: TensorEntry | None) -> TensorEntry | None:
        if stored is None or len(stored.shape) < 2:  # one number for all
            return stored
        return slice_of(stored, index, stored.name)

    codes = slice_of(coded.codes, index, coded.codes.name)
    own = replace(coded, codes=codes, scales=part(coded.scales), zeros=part(coded.zeros))
    return replace(entry, name=name, shape=shape, nbytes=size, offset=codes.offset, coded=own)


def rows_of(entry: TensorEntry, name: str, first: int, count: int, step: int = 1) -> TensorEntry:
    """`count` rows of a matrix, or values of a vector, from `first` on, each `step` after the one before."""
    size = entry.nbytes // entry.shape[0]
    part = replace(entry, name=name, shape=(count, *entry.shape[1:]), nbytes=count * size)
    if entry.coded is None and step == 1:
        return replace(part, offset=entry.offset + first * size)
    coded = entry.coded or _floats(entry)
    return replace(
        part, coded=replace(coded, first_row=coded.first_row + first * coded.row_step, row_step=coded.row_step * step)
    )


def runs_of(entry: TensorEntry, name: str, first: int, count: int, run: int, apart: int) -> TensorEntry:
    """`count` rows of a matrix, or values of a vector, in runs of `run` beside each other, the first of which is
    `first` and each begins `apart` behind the one before. CheckpointError for a matrix of codes.
    """
    if count <= run or run == apart:
        return rows_of(entry, name, first, count)
    coded = entry.coded or _floats(entry)
    if coded.packing != "floats" or coded.row_run != 1 or coded.row_step != 1 or coded.transposed:
        wanted = "floats or GGUF blocks, as its rows are put in another order"
        raise damaged(entry.file, f"matrix {entry.name}", seen=coded.label, wanted=wanted)
    size = entry.nbytes // entry.shape[0]
    rows = replace(coded, first_row=coded.first_row + first, row_step=apart, row_run=run)
    return replace(entry, name=name, shape=(count, *entry.shape[1:]), nbytes=count * size, coded=rows)


def transposed(entry: TensorEntry, name: str) -> TensorEntry:
    """A matrix turned: its columns are rows, floats where blocks of several lay there. CheckpointError for a part of
    what lies in its tensors.
    """
    coded = entry.coded or _floats(entry)
    if coded.first_row or coded.first_column or coded.transposed or coded.rows != entry.shape[0]:
        raise damaged(entry.file, f"matrix {entry.name}", seen="a part of one", wanted="all of it, as it is turned")
    dtype = entry.dtype if entry.dtype.block == 1 else FLOAT32
    return replace(
        entry,
        name=name,
        dtype=dtype,
        shape=entry.shape[::-1],
        nbytes=math.prod(entry.shape) * dtype.bytes,
        coded=replace(coded, transposed=True, columns=entry.shape[1]),
    )


def columns_of(entry: TensorEntry, name: str, first: int, count: int) -> TensorEntry:
    """`count` columns of a matrix that `transposed` gave, from `first` on: rows of what is stored."""
    coded = entry.coded or _floats(entry)
    if coded.packing == "floats":
        coded, first = replace(coded, codes=rows_of(coded.codes, coded.codes.name, first, count)), 0
    return replace(
        entry,
        name=name,
        shape=(entry.shape[0], count),
        nbytes=math.prod((entry.shape[0], count)) * entry.dtype.bytes,
        coded=replace(coded, first_column=coded.first_column + first),
    )


def _floats(entry: TensorEntry) -> CodedMatrix:
    return CodedMatrix(entry.dtype.name, "floats", 8 * entry.dtype.bytes, (1, 1), entry)
