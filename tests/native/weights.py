"""Stored matrices of every format for tests, with the gguf package as the oracle of what they say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from homenode import _native
from homenode.compute.native import NativeBackend
from homenode.compute.ops import FloatArray
from homenode.compute.stored_matrix import StoredMatrix
from homenode.dtypes import BY_NAME
from homenode.numa_policy import NumaPolicy

FLOATS = ("F32", "F16", "BF16")
ENCODED = (*FLOATS, "Q8_0", "Q4_0")  # formats the core can write
SCALES = {  # where a stored block has 16-bit floats
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "MXFP4": (),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
FORMATS = (*FLOATS, *SCALES)

Bytes = npt.NDArray[np.uint8]


def packed_floats(
    pool: _native.ThreadPool,
    values: FloatArray,
    arena: _native.Arena | None = None,
    policy: _native.NativeNumaPolicy = _native.NativeNumaPolicy.shard,
) -> _native.Weight:
    """float32 [rows, columns] kept as they are."""
    rows, columns = values.shape
    shape = _native.WeightShape(format=0, rows=rows, columns=columns, policy=policy)
    return _native.weight_from_rows(pool, values, shape, arena)


@dataclass(frozen=True)
class Stored:
    """A matrix as a file has it: uint8 [rows, bytes of a row], and float32 [rows, columns] as the gguf package decodes
    it.
    """

    format: str
    bytes: Bytes
    values: FloatArray


def stored(format: str, rows: int, columns: int, seed: int = 0) -> Stored:
    """Any codes, with scales of a sensible size of either sign."""
    random = np.random.default_rng(seed)
    if format in FLOATS:
        return stored_values(format, random.standard_normal((rows, columns)).astype(np.float32))
    kind = GGMLQuantizationType[format]
    block, size = GGML_QUANT_SIZES[kind]
    data = random.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
    for at in SCALES[format]:
        scales = random.normal(0, 0.02, data.shape[:2]).astype(np.float16)
        data[:, :, at : at + 2] = scales[..., None].view(np.uint8)
    if format == "MXFP4":
        data[:, :, 0] = random.integers(118, 124, data.shape[:2])
    data = data.reshape(rows, -1)
    return Stored(format, data, decoded(format, data))


def with_codes(format: str, rows: int, columns: int, fill: int) -> Stored:
    """Every byte `fill`, but for the 16-bit floats and exponents that scale a block."""
    plain = stored(format, rows, columns)
    size = GGML_QUANT_SIZES[GGMLQuantizationType[format]][1]
    in_block = np.arange(plain.bytes.shape[1]) % size
    scale_bytes = [0] if format == "MXFP4" else [at + i for at in SCALES[format] for i in (0, 1)]
    data = np.where(np.isin(in_block, scale_bytes), plain.bytes, np.uint8(fill))
    return Stored(format, data, decoded(format, data))


def stored_values(format: str, values: FloatArray) -> Stored:
    """`values` as the gguf package encodes them."""
    data = quants.quantize(values, GGMLQuantizationType[format]).view(np.uint8).reshape(len(values), -1)
    return Stored(format, data, decoded(format, data))


def decoded(format: str, data: Bytes) -> FloatArray:
    """What the gguf package says the stored rows are."""
    if format in ("F32", "F16"):  # whose rows it wants as numbers already
        return data.view({"F32": np.float32, "F16": np.float16}[format]).astype(np.float32)
    return quants.dequantize(data, GGMLQuantizationType[format]).astype(np.float32)


def load(
    backend: NativeBackend,
    file: Path,
    matrix: Stored,
    target: str | None = None,
    permuted_heads: int = 0,
    policy: NumaPolicy = NumaPolicy.SHARD,
) -> _native.Weight:
    """The matrix written into `file` at an odd offset, and read from it by the backend."""
    file.write_bytes(b"\xff" * 77 + matrix.bytes.tobytes())
    rows, columns = matrix.values.shape
    with file.open("rb") as opened:
        kept = target or matrix.format
        return backend.weight_from_file(
            StoredMatrix(opened.fileno(), 77, BY_NAME[matrix.format], rows, columns, permuted_heads=permuted_heads),
            kept,
            policy,
        )


def unpacked(weight: _native.Weight) -> FloatArray:
    """All rows of a packed weight."""
    return np.stack([weight.unpack_row(row) for row in range(weight.rows)])
