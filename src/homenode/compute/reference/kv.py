"""Paged KV memory of the reference backend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from homenode.compute.ops import FloatArray, IntArray, KvGeometry
from homenode.compute.reference.formats import round_bf16


class ReferenceKvCache:
    """Keys and values in blocks, [layers, blocks, block_size, kv_heads, head_dim] each.

    Held as float32 whatever the geometry says; with dtype "bf16" the values are rounded to bfloat16 when stored, with
    "int8" to whole multiples of a scale for each token and head.
    """

    def __init__(self, geometry: KvGeometry, blocks: int) -> None:
        shape = (geometry.layers, blocks, geometry.block_size, geometry.kv_heads, geometry.head_dim)
        self.geometry = geometry
        self.blocks = blocks
        self._keys = np.zeros(shape, np.float32)
        self._values = np.zeros(shape, np.float32)

    @property
    def nbytes(self) -> int:
        """Bytes really held."""
        return self._keys.nbytes + self._values.nbytes

    def check(self, block_row: IntArray, context: int) -> None:
        """ValueError unless `block_row` begins with the blocks of a context of this length."""
        used = block_row[: -(-context // self.geometry.block_size)]
        if len(used) * self.geometry.block_size < context or (
            len(used) and not 0 <= used.min() <= used.max() < self.blocks
        ):
            raise ValueError(
                f"blocks {used.tolist()} do not hold a context of {context}: {self.blocks} of {self.geometry.block_size} exist"
            )

    def store(self, layer: int, block_row: IntArray, positions: IntArray, keys: FloatArray, values: FloatArray) -> None:
        """Put keys and values [n, kv_heads * head_dim] of a sequence's `positions` where its `block_row` says."""
        size = self.geometry.block_size
        where = (layer, block_row[positions // size], positions % size)
        shape = (len(positions), self.geometry.kv_heads, self.geometry.head_dim)
        rounded = _AS_STORED[self.geometry.dtype]
        self._keys[where] = rounded(keys.reshape(shape))
        self._values[where] = rounded(values.reshape(shape))

    def gather(self, layer: int, block_row: IntArray, context: int) -> tuple[FloatArray, FloatArray]:
        """Keys and values of positions 0 .. context - 1: two contiguous arrays [kv_heads, context, head_dim]."""
        used = block_row[: -(-context // self.geometry.block_size)]
        shape = (-1, self.geometry.kv_heads, self.geometry.head_dim)
        keys, values = (
            np.ascontiguousarray(side[layer, used].reshape(shape)[:context].transpose(1, 0, 2))
            for side in (self._keys, self._values)
        )
        return keys, values


def _round_int8(heads: FloatArray) -> FloatArray:
    """What symmetric int8 makes of each last axis: its largest magnitude becomes 127, the others the nearest code,
    halves to even.

    Below 1e-30 all is 0; where a value is not finite all are NaN.
    """
    largest = np.abs(heads).max(axis=-1, keepdims=True)
    usable = (largest >= np.float32(1e-30)) & np.isfinite(largest)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=usable)
    scale = np.where(np.isfinite(largest), np.where(usable, largest / np.float32(127), 0), np.nan).astype(np.float32)
    with np.errstate(invalid="ignore"):  # infinite times zero
        return np.asarray(np.rint(heads * inverse) * scale, np.float32)


_AS_STORED: dict[str, Callable[[FloatArray], FloatArray]] = {"f32": np.asarray, "bf16": round_bf16, "int8": _round_int8}
