"""Storage formats in NumPy: stored bytes to float32, and float32 rounded to what a format can hold.

Block layouts: the GGUF specification. Q8_0 is a float16 scale d and 32 int8 q, value d*q. Q4_0 is a float16 scale d and
16 bytes, the low nibbles elements 0-15 and the high nibbles 16-31 of the block, value d*(q - 8). The rarer types are
decoded by the `gguf` package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from homenode.compute.ops import FloatArray
from homenode.dtypes import DType
from homenode.errors import InternalError

ByteArray = npt.NDArray[np.uint8]

# Formats a float32 matrix can be rounded to, and formats read from a file. A matrix in any of the latter stays as exact
# as its file.
ENCODABLE = frozenset({"F32", "F16", "BF16", "Q8_0", "Q4_0"})
DECODABLE = ENCODABLE | {"Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"}


def decode(raw: ByteArray, dtype: DType, rows: int, columns: int) -> FloatArray:
    """float32 [rows, columns] from the bytes of a row-major matrix of `dtype`. InternalError for a type outside
    DECODABLE.
    """
    if dtype.name not in DECODABLE:
        raise InternalError(
            f"the reference backend cannot decode {dtype.name}; the loader should have decoded it", dtype=dtype.name
        )
    stored = raw.reshape(rows, dtype.row_bytes(columns))
    match dtype.name:
        case "F32":
            return stored.view("<f4").astype(np.float32)
        case "F16":
            return stored.view("<f2").astype(np.float32)
        case "BF16":
            return np.asarray((stored.view("<u2").astype(np.uint32) << 16).view(np.float32))
        case "Q8_0":
            blocks = stored.reshape(-1, dtype.bytes)
            return (_scale(blocks) * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(rows, columns)
        case "Q4_0":
            blocks = stored.reshape(-1, dtype.bytes)
            nibbles = np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], axis=1)
            return (_scale(blocks) * (nibbles.astype(np.float32) - 8)).reshape(rows, columns)
        case _:
            return _decode_with_gguf(stored, dtype, rows, columns)


def round_bf16(values: FloatArray) -> FloatArray:
    """The nearest bfloat16 values (ties to even) as float32; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32)).astype(np.float32, copy=False)


def round_to(values: FloatArray, target: str) -> FloatArray:
    """float32 [rows, columns] after a trip through `target` (one of ENCODABLE). Rows are padded with zeros to whole
    blocks on the way.

    Values float16 cannot hold become infinite, as a conversion in hardware would make them.
    """
    encoders: dict[str, Callable[[FloatArray], FloatArray]] = {
        "F32": lambda v: np.array(v, np.float32),
        "F16": _round_f16,
        "BF16": round_bf16,
        "Q8_0": lambda v: _in_blocks(v, _round_q8_0),
        "Q4_0": lambda v: _in_blocks(v, _round_q4_0),
    }
    if target not in encoders:
        raise InternalError(
            f"the reference backend cannot encode {target}; it can encode {', '.join(sorted(ENCODABLE))}", dtype=target
        )
    return encoders[target](values)


def _scale(blocks: ByteArray) -> FloatArray:
    return np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)


def _decode_with_gguf(stored: ByteArray, dtype: DType, rows: int, columns: int) -> FloatArray:
    from gguf import GGMLQuantizationType  # slow to import, and only wanted for types this file does not spell out
    from gguf.quants import dequantize

    decoded: Any = dequantize(stored, GGMLQuantizationType(dtype.gguf_id))
    return np.asarray(decoded, np.float32).reshape(rows, columns)


def _round_f16(values: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).astype(np.float32)


def _in_blocks(values: FloatArray, encode: Callable[[FloatArray], FloatArray]) -> FloatArray:
    """Apply `encode` to blocks of 32 columns, the last one of a row filled up with zeros."""
    rows, columns = values.shape
    padded = np.zeros((rows, -(-columns // 32) * 32), np.float32)
    padded[:, :columns] = values
    return np.ascontiguousarray(encode(padded.reshape(-1, 32)).reshape(rows, -1)[:, :columns])


def _inverse(scale: FloatArray) -> FloatArray:
    return np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale != 0)


def _round_q8_0(blocks: FloatArray) -> FloatArray:
    """Scale amax / 127; quotients rounded half away from zero."""
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    quotients = blocks * _inverse(scale)
    q = np.copysign(np.floor(np.abs(quotients) + np.float32(0.5)), quotients)
    return np.asarray(_round_f16(scale) * q, np.float32)


def _round_q4_0(blocks: FloatArray) -> FloatArray:
    """Scale (the value of largest magnitude, with its sign) / -8, so that this value is met exactly; quotients rounded
    up from .5.
    """
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
    scale = largest / np.float32(-8)
    q = np.clip(np.trunc(blocks.astype(np.float64) * _inverse(scale) + 8.5), 0, 15).astype(np.float32)
    return np.asarray(_round_f16(scale) * (q - 8), np.float32)
