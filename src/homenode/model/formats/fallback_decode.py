"""Stored numbers -> float32 in Python, for every format: slow, exact, and needed only where a backend has no decoder of
its own.

Block formats are decoded by the `gguf` package (imported here only, when first needed); the plain formats, and four
block formats that package leaves out, by the layouts written down below. Source of the layouts: the block structures of
the ggml project.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from homenode.dtypes import DType
from homenode.errors import UnsupportedError
from homenode.model.formats.bounded_files import damaged, open_file
from homenode.model.spec import TensorEntry
from homenode.units import format_count

FloatArray = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_CHUNK_ELEMENTS = 2**22  # 16 MiB of float32; decoding needs a few times that for its intermediate values
_MOST_ROW_ELEMENTS = 2**26

_PLAIN = {
    "F32": "<f4", "F16": "<f2", "F64": "<f8", "I8": "<i1", "I16": "<i2", "I32": "<i4", "I64": "<i8",
    "U8": "<u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "<u1",
}  # fmt: skip


def iter_decoded_rows(entry: TensorEntry) -> Iterator[FloatArray]:
    """The rows of a tensor as float32 arrays [some rows, columns], first to last, a bounded number of bytes at a time.

    Rows come in the file's order: `permuted_heads` is left to the caller. A vector is one row; leading dimensions are
    rows. Raises UnsupportedError, naming the tensor, for a type nobody can decode, and CheckpointError when the file
    ends too early.
    """
    columns = entry.shape[-1] if entry.shape else 1
    rows = math.prod(entry.shape[:-1])
    if not entry.dtype.bytes:
        raise UnsupportedError(
            f"{entry.file}: tensor {entry.name} is stored as {entry.dtype.name}, which homenode cannot decode"
        )
    if columns > _MOST_ROW_ELEMENTS:
        raise damaged(
            entry.file, f"row length of tensor {entry.name}", seen=columns, wanted=f"at most {_MOST_ROW_ELEMENTS}"
        )
    row_bytes = entry.dtype.row_bytes(columns)
    step = max(1, _CHUNK_ELEMENTS // max(columns, 1))
    with open_file(entry.file) as file:
        for first in range(0, rows if columns else 0, step):
            count = min(step, rows - first)
            raw = os.pread(file.fileno(), count * row_bytes, entry.offset + first * row_bytes)
            if len(raw) != count * row_bytes:
                seen = f"{len(raw)} of {count * row_bytes} bytes from row {first} on"
                raise damaged(
                    entry.file,
                    f"tensor {entry.name}",
                    seen=seen,
                    wanted="all its bytes",
                    do="the file changed: open it again",
                )
            yield decode_rows(raw, entry.dtype, (count, columns))


def decode_rows(data: bytes | Bytes, dtype: DType, shape: tuple[int, int]) -> FloatArray:
    """`data` (rows one after the other, stored as `dtype`) as float32 of `shape` [rows, columns].

    Raises UnsupportedError for a type nobody can decode, ValueError when `data` is not that many bytes.
    """
    rows, columns = shape
    raw = np.frombuffer(data, np.uint8)
    if not dtype.bytes:
        raise UnsupportedError(f"numbers stored as {dtype.name} cannot be decoded")
    if raw.size != rows * dtype.row_bytes(columns):
        raise ValueError(
            f"{format_count(rows, 'row')} of {columns} {dtype.name} are {rows * dtype.row_bytes(columns)} bytes; seen "
            f"{raw.size}"
        )
    if dtype.name in _PLAIN:
        return raw.view(_PLAIN[dtype.name]).astype(np.float32).reshape(shape)
    if own := _OWN.get(dtype.name):
        return own(raw.reshape(-1, dtype.bytes)).reshape(shape)
    return _by_package(raw.reshape(rows, -1), dtype).reshape(shape)


def _by_package(raw: Bytes, dtype: DType) -> FloatArray:
    import gguf  # most models never need it

    kind = gguf.GGMLQuantizationType(dtype.gguf_id)
    # A scale may be infinite or no number: so are the weights then, which is not for us to judge.
    with np.errstate(all="ignore"):
        values: Any = gguf.quants.dequantize(raw, kind)
    return np.ascontiguousarray(values, np.float32)


def _bf16(blocks: Bytes) -> FloatArray:
    """The upper half of a float32."""
    return (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _f8_e5m2(blocks: Bytes) -> FloatArray:
    """The upper half of a float16."""
    return (blocks.astype(np.uint16) << 8).view(np.float16).astype(np.float32)


def _f8_e4m3(blocks: Bytes) -> FloatArray:
    """Sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinities, all ones is NaN (the variant called E4M3FN)."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    value[(code & 127) == 127] = np.nan
    table = np.where(code < 128, value, -value).astype(np.float32)
    return table[blocks]


def _f8_e8m0(blocks: Bytes) -> FloatArray:
    """A power of two: 127 is 1, 255 is no number."""
    powers = np.ldexp(np.float32(1), blocks.astype(np.int32) - 127)
    return np.where(blocks == 255, np.float32(np.nan), powers)


def _q8_1(blocks: Bytes) -> FloatArray:
    """Block of 32: f16 scale, f16 scale times the sum, i8[32]."""
    return _scales(blocks[:, :2], "<f2") * blocks[:, 4:].view(np.int8).astype(np.float32)


def _q8_k(blocks: Bytes) -> FloatArray:
    """Block of 256: f32 scale, i8[256], i16[16] sums of each 16."""
    return _scales(blocks[:, :4], "<f4") * blocks[:, 4:260].view(np.int8).astype(np.float32)


def _q1_0(blocks: Bytes) -> FloatArray:
    """Block of 128: f16 scale, 128 bits, lowest first: plus or minus the scale."""
    bits = np.unpackbits(np.ascontiguousarray(blocks[:, 2:]), axis=1, bitorder="little")
    return _scales(blocks[:, :2], "<f2") * (2.0 * bits - 1.0).astype(np.float32)


def _q2_0(blocks: Bytes) -> FloatArray:
    """Block of 64: f16 scale, 64 codes of two bits, lowest first: minus one to two times the scale."""
    codes = blocks[:, 2:, None] >> np.array([0, 2, 4, 6], np.uint8) & 3
    return _scales(blocks[:, :2], "<f2") * (codes.reshape(len(blocks), -1).astype(np.float32) - 1)


def _scales(columns: Bytes, layout: str) -> FloatArray:
    return np.ascontiguousarray(columns).view(layout).astype(np.float32)


_OWN: dict[str, Callable[[Bytes], FloatArray]] = {
    "BF16": _bf16, "F8_E5M2": _f8_e5m2, "F8_E4M3": _f8_e4m3, "F8_E8M0": _f8_e8m0, "Q8_1": _q8_1, "Q8_K": _q8_k,
    "Q1_0": _q1_0, "Q2_0": _q2_0,
}  # fmt: skip
