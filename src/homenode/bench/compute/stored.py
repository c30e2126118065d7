"""Matrices for measuring, as a file would hold them: any codes, scales of a sensible size."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from homenode.dtypes import DType

# Where a block has 16-bit floats (csrc/quant/split.h): random bits there could be infinite, or so small that
# processors take a slow path.
_SCALES = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "MXFP4": (),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
_DIFFERENT_BLOCKS = 1 << 14  # then they repeat: multiplying does not depend on values

FORMATS = ("F32", "F16", "BF16", *_SCALES)


def random_blocks(dtype: DType, count: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """uint8 [count, bytes of a block]. KeyError for a format that is not in FORMATS."""
    random = np.random.default_rng(seed)
    made = min(count, _DIFFERENT_BLOCKS)
    if dtype.block == 1:
        values = random.standard_normal(made).astype(np.float32)
        blocks = _float_bytes(dtype.name, values).reshape(made, dtype.bytes)
    else:
        blocks = random.integers(0, 256, (made, dtype.bytes), dtype=np.uint8)
        for at in _SCALES[dtype.name]:
            blocks[:, at : at + 2] = random.normal(0, 0.02, made).astype(np.float16)[:, None].view(np.uint8)
        if dtype.name == "MXFP4":
            blocks[:, 0] = random.integers(118, 124, made)  # powers of two from 2^-9 to 2^-4
    return np.resize(blocks, (count, dtype.bytes))


def _float_bytes(name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    if name == "F32":
        return values.view(np.uint8)
    if name == "F16":
        return values.astype(np.float16).view(np.uint8)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


@contextmanager
def stored_matrix(dtype: DType, rows: int, columns: int) -> Iterator[int]:
    """The file descriptor of a file in memory that holds a [rows, columns] matrix. ValueError when a row would end
    inside a block."""
    row = dtype.row_bytes(columns)
    data = random_blocks(dtype, min(rows * row // dtype.bytes, _DIFFERENT_BLOCKS)).tobytes()
    fd = os.memfd_create("homenode-bench")
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            left = rows * row
            while left > 0:
                left -= file.write(data[:left])
        yield fd
    finally:
        os.close(fd)
