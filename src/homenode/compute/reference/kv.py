"""Paged KV memory of the reference backend."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from homenode.compute.ops import ROW_TOKENS, FloatArray, IntArray, KvGeometry, LayerKv
from homenode.compute.reference.formats import round_bf16


class ReferenceKvCache:
    """Keys and values in blocks, of each layer [blocks, block_size, kv_heads, width] each; values of no width where
    they are columns of the keys.

    Held as float32 whatever the geometry says; with dtype "bf16" the values are rounded to bfloat16 when stored, with
    "int8" to whole multiples of a scale for each token and head.
    """

    def __init__(self, geometry: KvGeometry, blocks: int) -> None:
        self.geometry = geometry
        self.blocks = blocks
        slots = (blocks, geometry.block_size)
        self.keys = [np.zeros((*slots, of.kv_heads, of.key_width), np.float32) for of in geometry.layers]
        self.values = [np.zeros((*slots, of.kv_heads, of.value_width), np.float32) for of in geometry.layers]

    @property
    def nbytes(self) -> int:
        """Bytes really held."""
        return sum(side.nbytes for side in (*self.keys, *self.values))

    def check(self, block_row: IntArray, context: int) -> None:
        """ValueError unless `block_row` begins with the blocks of a context of this length."""
        used = block_row[: -(-context // self.geometry.block_size)]
        if len(used) * self.geometry.block_size < context or (
            len(used) and not 0 <= used.min() <= used.max() < self.blocks
        ):
            raise ValueError(
                f"blocks {used.tolist()} do not hold a context of {context}: {self.blocks} of "
                f"{self.geometry.block_size} exist"
            )

    def store(
        self, layer: int, block_row: IntArray, positions: IntArray, keys: FloatArray, values: FloatArray | None
    ) -> None:
        """Put keys and values [n, kv_heads * width] of a sequence's `positions` where its `block_row` says."""
        size = self.geometry.block_size
        where = (block_row[positions // size], positions % size)
        rounded = AS_STORED[self.geometry.dtype]
        for side, rows in ((self.keys[layer], keys), (self.values[layer], values)):
            if rows is not None:
                side[where] = rounded(rows.reshape(len(positions), *side.shape[2:]))

    def store_windows(self, layer: int, block_row: IntArray, positions: IntArray, rows: FloatArray, ratio: int) -> None:
        """Put those of `rows` [n, width] whose positions end windows of `ratio` tokens where `LayerKv.of_windows`
        says.
        """
        ends = positions % ratio == ratio - 1
        rounded = AS_STORED[self.geometry.dtype](rows[ends])
        self._windows(layer)[self._places(layer, block_row, positions[ends], ratio, rows.shape[1])] = rounded

    def gather_windows(self, layer: int, block_row: IntArray, ratio: int, width: int, count: int) -> FloatArray:
        """Return those of the first `count` windows: [count, width]."""
        ends = np.arange(1, count + 1, dtype=np.int32) * ratio - 1
        return self._windows(layer)[self._places(layer, block_row, ends, ratio, width)]

    def _windows(self, layer: int) -> FloatArray:
        """Return what a layer keeps of each 16 tokens of each block, one element after the other."""
        keys = self.keys[layer]
        return keys.reshape(self.blocks, self.geometry.block_size // ROW_TOKENS, ROW_TOKENS * keys.shape[3])

    def _places(
        self, layer: int, block_row: IntArray, ends: IntArray, ratio: int, width: int
    ) -> tuple[IntArray, IntArray, IntArray]:
        size = self.geometry.block_size
        if size % ROW_TOKENS or self.geometry.layers[layer] != LayerKv.of_windows(width, ratio):
            raise ValueError(
                f"layer {layer} has no rows of width {width} for runs of length {ratio} in blocks of {size}"
            )
        elements = (ends % ROW_TOKENS // ratio * width)[:, None] + np.arange(width)
        return block_row[ends // size][:, None], (ends % size // ROW_TOKENS)[:, None], elements

    def gather(self, layer: int, block_row: IntArray, context: int) -> tuple[FloatArray, FloatArray]:
        """Keys and values of positions 0 .. context - 1: two contiguous arrays [kv_heads, context, width]."""
        used = block_row[: -(-context // self.geometry.block_size)]
        shape = self.geometry.layers[layer]
        keys, values = (
            np.ascontiguousarray(side[used].reshape(-1, *side.shape[2:])[:context].transpose(1, 0, 2))
            for side in (self.keys[layer], self.values[layer] if shape.sides == 2 else self.keys[layer])
        )
        return keys, values[..., : shape.value_size]


def _round_int8(heads: FloatArray) -> FloatArray:
    """Return what symmetric int8 makes of each last axis: its largest magnitude becomes 127, the others the nearest
    code, halves to even.

    Below 1e-30 all is 0; where a value is not finite all are NaN.
    """
    largest = np.abs(heads).max(axis=-1, keepdims=True)
    usable = (largest >= np.float32(1e-30)) & np.isfinite(largest)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=usable)
    scale = np.where(np.isfinite(largest), np.where(usable, largest / np.float32(127), 0), np.nan).astype(np.float32)
    with np.errstate(invalid="ignore"):  # infinite times zero
        return np.asarray(np.rint(heads * inverse) * scale, np.float32)


AS_STORED: dict[str, Callable[[FloatArray], FloatArray]] = {"f32": np.asarray, "bf16": round_bf16, "int8": _round_int8}
