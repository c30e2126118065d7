"""The values of a folder's matrices that are not rows one after the other: codes and scales -> rows of Q4_0, Q4_1, Q8_0
or MXFP4 with the same codes, or float32; floats in another order -> float32.

A matrix is worked on in chunks of rows, by as many threads as there are CPUs: numpy lets others run while it computes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from homenode.dtypes import BY_NAME, DType
from homenode.errors import InternalError
from homenode.host.bind.base.syscalls import thread_cpus
from homenode.model.formats.bounded_files import damaged, read_at
from homenode.model.formats.fallback_decode import decode_rows
from homenode.model.spec import CodedMatrix, TensorEntry

FloatArray = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Indices = npt.NDArray[np.int64]

_CHUNK_ELEMENTS = 2**20
_MOST_THREADS = 16
_BLOCK = 32  # columns of a block of Q4_0, Q4_1, Q8_0 and MXFP4
_E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)  # 4-bit floats
# Of a word's eight codes, from the lowest bits on: which of its eight rows each is of.
_AWQ_ROWS = (0, 2, 4, 6, 1, 3, 5, 7)


def column_order(entry: TensorEntry, groups: int) -> Indices:
    """The group of each column; CheckpointError for one that is not there."""
    order = _array(entry).astype(np.int64)
    if not ((order >= 0) & (order < groups)).all():
        raise damaged(
            entry.file,
            f"values of tensor {entry.name}",
            seen=f"{order.min()} to {order.max()}",
            wanted=f"0 to {groups - 1}",
        )
    return order


def write_blocks(entry: TensorEntry, rows: tuple[int, int], columns: tuple[int, int], fd: int) -> None:
    """Write rows from `rows[0]` to before `rows[1]`, and of these the columns likewise, to an open file, stored as
    `entry.dtype`.

    `columns`: whole blocks. CheckpointError for values the format cannot hold, or when a file ends too early.
    """
    values = _Values.read(entry)
    width = entry.dtype.row_bytes(columns[1] - columns[0])

    def write(first: int, end: int) -> None:
        data = values.blocks(first, end, columns).reshape(-1)
        at = (first - rows[0]) * width
        while data.size:
            count = os.pwrite(fd, data.data, at)
            data, at = data[count:], at + count

    _each_chunk(write, rows, entry.shape[1])


def decoded(entry: TensorEntry, rows: tuple[int, int], columns: tuple[int, int]) -> FloatArray:
    """The same rows and columns as float32."""
    values = _Values.read(entry)
    floats = np.empty((rows[1] - rows[0], columns[1] - columns[0]), np.float32)

    def fill(first: int, end: int) -> None:
        floats[first - rows[0] : end - rows[0]] = values.floats(first, end, columns)

    _each_chunk(fill, rows, entry.shape[1])
    return floats


def _each_chunk(work: Callable[[int, int], None], rows: tuple[int, int], columns: int) -> None:
    def quietly(first: int, end: int) -> None:
        # A scale may be infinite or no number: so are the weights then, which is not for us to judge.
        with np.errstate(all="ignore"):
            work(first, end)

    step = max(8, _CHUNK_ELEMENTS // columns)
    starts = range(rows[0], rows[1], step)
    with ThreadPoolExecutor(min(len(thread_cpus()), len(starts) or 1, _MOST_THREADS)) as threads:
        for done in [threads.submit(quietly, first, min(first + step, rows[1])) for first in starts]:
            done.result()


@dataclass(frozen=True)
class _Values:
    """A matrix's parts, read. `scales` and `zeros`: [rows of the tensors, or blocks of them, groups of columns];
    `zeros` None: the middle of the codes.
    """

    entry: TensorEntry
    coded: CodedMatrix
    codes: npt.NDArray[Any]
    scales: FloatArray
    zeros: Bytes | None
    group: Indices  # of each stored column

    @staticmethod
    def read(entry: TensorEntry) -> _Values:
        coded = entry.coded
        if coded is None:
            raise InternalError(f"{entry.name} is no matrix of codes and scales")
        codes = _array(coded.codes)
        codes = codes if codes.ndim == 2 else codes.reshape(-1, 1)  # a vector is a column
        if coded.scales is None:
            return _Values(entry, coded, codes, np.empty((0, 0), np.float32), None, np.empty(0, np.int64))
        by_columns = coded.packing in ("gptq", "awq")
        scales = _scales(coded.scales, coded)
        scales = scales.reshape(coded.scales.shape if len(coded.scales.shape) == 2 else (-1, 1))
        scales = np.ascontiguousarray(scales.T) if by_columns else scales
        columns = coded.columns if coded.transposed else entry.shape[1]
        group = (
            np.arange(columns) // coded.block[1] if coded.order is None else column_order(coded.order, scales.shape[1])
        )
        return _Values(entry, coded, codes, scales, _zeros(coded), group)

    def blocks(self, first: int, end: int, columns: tuple[int, int]) -> Bytes:
        """Some rows as blocks [rows, bytes]."""
        rows = self._stored_rows(first, end)
        codes = self._numbers(rows)[:, columns[0] : columns[1]]
        group = self.group[columns[0] : columns[1] : _BLOCK]
        scales = self._of_rows(self.scales, rows)[:, group]
        codes = codes.reshape(len(codes), -1, _BLOCK)
        if self.entry.dtype.name == "Q8_0":
            self._check_middle(rows)
            return _joined(self._halves(scales), codes - np.uint8(self._middle))
        nibbles = codes[..., : _BLOCK // 2] | codes[..., _BLOCK // 2 :] << 4
        if self.entry.dtype.name == "MXFP4":
            return _joined(self._of_rows(self._powers(), rows)[:, group, None], nibbles)
        if self.entry.dtype.name == "Q4_0":
            self._check_middle(rows)
            return _joined(self._halves(scales), nibbles + np.uint8(0x11 * (8 - self._middle)))
        zeros = self._of_rows(self._stored_zeros(), rows)[:, group]
        return _joined(self._halves(scales), self._halves(-zeros.astype(np.float32) * scales), nibbles)

    def floats(self, first: int, end: int, columns: tuple[int, int]) -> FloatArray:
        """Some rows as float32."""
        if self.coded.row_run > 1:
            held = self.codes[self._rows_of_runs(first, end)]
            dtype = self.coded.codes.dtype
            return _decoded(held, dtype, None if dtype.block == 1 else self.entry.shape[-1])[:, slice(*columns)]
        rows = self._stored_rows(first, end)
        if not self.coded.transposed:
            return self._stored_floats(rows, slice(*columns))
        before = self.coded.first_column
        return self._stored_floats(slice(before + columns[0], before + columns[1]), rows).T

    def _stored_rows(self, first: int, end: int) -> slice:
        """Return where rows of the matrix are among those of the tensors, or among their columns."""
        start, step = self.coded.first_row, self.coded.row_step
        return slice(start + step * first, start + step * (end - 1) + 1, step)

    def _rows_of_runs(self, first: int, end: int) -> Indices:
        """The same where rows lie in runs."""
        row = np.arange(first, end)
        return self.coded.first_row + row // self.coded.row_run * self.coded.row_step + row % self.coded.row_run

    def _stored_floats(self, rows: slice, columns: slice) -> FloatArray:
        """Some of what lies in the tensors."""
        if self.coded.packing == "floats":
            dtype = self.coded.codes.dtype
            if dtype.block != 1:
                return _decoded(self.codes[rows], dtype, self.coded.codes.shape[1])[:, columns]
            return _decoded(self.codes[rows, columns], dtype)
        group = self.group[columns]
        scales: FloatArray = self._of_rows(self.scales, rows)[:, group]
        if self.coded.packing == "float8":
            return _decoded(self.codes[rows, columns], BY_NAME["F8_E4M3"]) * scales
        numbers = self._numbers(rows)[:, columns]
        if self.coded.packing == "float4":
            return _E2M1[numbers] * scales
        codes = numbers.astype(np.float32)
        zeros = self._middle if self.zeros is None else self._of_rows(self.zeros, rows)[:, group].astype(np.float32)
        return (codes - zeros) * scales

    def _numbers(self, rows: slice) -> Bytes:
        """The codes of some rows of the tensors, a byte each, not negative."""
        bits, columns = self.coded.bits, len(self.group)
        if self.coded.packing == "gptq":
            return _unpacked(self.codes[:, rows].T, bits)
        if self.coded.packing == "awq":
            before = 8 * (rows.start // 8)
            words = self.codes[:, before // 8 : -(-rows.stop // 8)].T
            whole = _unpacked_awq(words)
            return whole[rows.start - before : rows.stop - before : rows.step]
        if self.coded.packing in ("rows", "float4"):
            return _unpacked(self.codes[rows], bits)[:, :columns]
        codes: Bytes = self.codes[rows].view(np.uint8) ^ np.uint8(0x80)
        return codes

    @property
    def _middle(self) -> int:
        return 1 << (self.coded.bits - 1)

    def _of_rows(self, values: npt.NDArray[Any], rows: slice) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = values[np.arange(rows.start, rows.stop, rows.step) // self.coded.block[0]]
        return found

    def _powers(self) -> Bytes:
        if self.coded.scales is None:
            raise InternalError(f"{self.entry.name} has no scales")
        return _array(self.coded.scales)

    def _stored_zeros(self) -> Bytes:
        if self.zeros is None:
            raise InternalError(f"{self.entry.name} has no zero points")
        return self.zeros

    def _check_middle(self, rows: slice) -> None:
        """Zero points that are said to be the middle of the codes must be."""
        if self.zeros is None:
            return
        zeros = self._of_rows(self.zeros, rows)
        if (zeros != self._middle).any():
            name = self.coded.zeros.name if self.coded.zeros else self.entry.name
            seen = f"zero points from {zeros.min()} to {zeros.max()} in rows {rows.start} to {rows.stop - 1}"
            raise damaged(
                self.entry.file, f"tensor {name}", seen=seen, wanted=f"{self._middle}, as the configuration says sym"
            )

    def _halves(self, values: FloatArray) -> Bytes:
        """Return the bytes as float16, the bytes of each on an axis of their own."""
        halves = values.astype("<f2")
        if (np.isinf(halves) & np.isfinite(values)).any():
            largest = np.abs(values[np.isfinite(values)]).max()
            raise damaged(
                self.entry.file,
                f"scales of {self.entry.name}",
                seen=f"{largest:g}",
                wanted="at most 65504, as float16 holds",
            )
        return np.ascontiguousarray(halves).view(np.uint8).reshape(*values.shape, 2)


def _joined(*parts: npt.NDArray[Any]) -> Bytes:
    """Blocks [rows, blocks, bytes] of parts of them, as rows."""
    return np.concatenate(parts, axis=2).reshape(len(parts[0]), -1)


def _unpacked(words: npt.NDArray[Any], bits: int) -> Bytes:
    """Words [n, words] -> codes [n, codes], those of the lowest bits first."""
    held = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return held
    if bits not in (2, 4):
        single = np.unpackbits(held, axis=1, bitorder="little")
        whole = single[:, : single.shape[1] // bits * bits].reshape(len(held), -1, bits)
        return np.packbits(whole, axis=2, bitorder="little")[..., 0]
    codes = np.empty((*held.shape, 8 // bits), np.uint8)
    for i in range(8 // bits):
        codes[..., i] = held >> (bits * i) & ((1 << bits) - 1)
    return codes.reshape(len(held), -1)


def _unpacked_awq(words: npt.NDArray[Any]) -> Bytes:
    """Words [words of eight rows, columns] -> codes [rows, columns]."""
    codes = np.empty((words.shape[0], 8, words.shape[1]), np.uint8)
    for i, row in enumerate(_AWQ_ROWS):
        codes[:, row] = words >> (4 * i) & 15
    return codes.reshape(-1, words.shape[1])


def _zeros(coded: CodedMatrix) -> Bytes | None:
    """The zero point of each scale, on the codes' own scale of numbers that are not negative."""
    if coded.zeros is None:
        return None
    stored, mask, rows = _array(coded.zeros), (1 << coded.bits) - 1, coded.rows
    if coded.packing == "gptq":
        return np.ascontiguousarray((_unpacked(stored, coded.bits)[:, :rows] + np.uint8(coded.zero_offset) & mask).T)
    if coded.packing == "awq":
        return _unpacked_awq(stored.T)[:rows]
    if coded.packing == "rows":
        return np.ascontiguousarray(_unpacked(stored.T, coded.bits)[:, :rows].T)
    return (stored.view(np.uint8) ^ np.uint8(0x80)).reshape(stored.shape if stored.ndim == 2 else (-1, 1))


def _array(entry: TensorEntry) -> npt.NDArray[Any]:
    """The numbers of a tensor, floats as their bits; of blocks the bytes of each row."""
    if entry.dtype.block != 1:
        return np.frombuffer(read_at(entry.file, entry.offset, entry.nbytes), np.uint8).reshape(entry.shape[0], -1)
    bits = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<i8"}[entry.dtype.bytes]  # of words: shifts bring in zeros
    kind = "<i1" if entry.dtype.name == "I8" else bits
    return np.frombuffer(read_at(entry.file, entry.offset, entry.nbytes), kind).reshape(entry.shape)


def _decoded(bits: npt.NDArray[Any], dtype: DType, columns: int | None = None) -> FloatArray:
    """A matrix of floats of their bits, or of blocks of so many columns in all."""
    shape = (len(bits), bits.shape[1] if columns is None else columns)
    return decode_rows(np.ascontiguousarray(bits).reshape(-1).view(np.uint8), dtype, shape)


@np.errstate(all="ignore")  # as in _each_chunk
def _scales(stored: TensorEntry, coded: CodedMatrix) -> FloatArray:
    """Return the scales as float32; bytes without a type of floats are powers of two."""
    if stored.dtype.name in ("U8", "F8_E8M0"):
        return _decoded(_array(stored).reshape(-1, 1), BY_NAME["F8_E8M0"]).reshape(stored.shape)
    scales = _floats(stored)
    if coded.scale_of_all is None:
        return scales
    whole = _floats(coded.scale_of_all).reshape(())
    return scales / whole if coded.divides else scales * whole


def _floats(entry: TensorEntry) -> FloatArray:
    elements = max(1, int(np.prod(entry.shape)))
    return decode_rows(read_at(entry.file, entry.offset, entry.nbytes), entry.dtype, (1, elements)).reshape(entry.shape)
