"""Paged KV memory on a device: keys and values of each layer [blocks + 1, block_size, kv_heads, width] each.

The block behind the last is nobody's: rows that only fill up a captured step write there.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from homenode.compute.ops import ROW_TOKENS, KvGeometry
from homenode.compute.torch.device import TorchDevice

_TOO_SMALL = 1e-30


class TorchKvCache:
    """KV memory of a torch device, zeroed. Types with scales have one float32 for the key and one for the value of each
    token and head. Of a layer that keeps keys alone, these are its values, too.
    """

    def __init__(self, geometry: KvGeometry, blocks: int, device: TorchDevice) -> None:
        g, (kept, self._codes) = geometry, CODECS[geometry.dtype]
        slots = (blocks + 1, g.block_size)
        self.geometry = geometry
        self.blocks = blocks
        self.reads = torch.bfloat16 if g.dtype == "bf16" and device.narrow else torch.float32

        def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device.device)

        self.keys = [zeros(*slots, of.kv_heads, of.key_width, dtype=kept) for of in g.layers]
        self.values = [
            zeros(*slots, of.kv_heads, of.value_width, dtype=kept) if of.sides == 2 else keys
            for of, keys in zip(g.layers, self.keys, strict=True)
        ]
        scaled = [(*slots, of.kv_heads) if self._codes else (0,) for of in g.layers]
        self._key_scales = [zeros(*shape, dtype=torch.float32) for shape in scaled]
        self._value_scales = [
            zeros(*shape, dtype=torch.float32) if of.sides == 2 else scales
            for of, shape, scales in zip(g.layers, scaled, self._key_scales, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes really held."""
        every = (*self.keys, *self.values, *self._key_scales, *self._value_scales)
        return sum(t.nbytes for t in {id(t): t for t in every}.values())

    def store(self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor | None) -> None:
        """Put keys and values [n, kv_heads, width] at `slots` [n], block * block_size + place within it."""
        for side, scales, rows in (
            (self.keys[layer], self._key_scales[layer], keys),
            (self.values[layer], self._value_scales[layer], values),
        ):
            if rows is None:
                continue
            flat = side.view(-1, *side.shape[2:])
            if self._codes:
                codes, scale = self._codes(rows)
                scales.view(-1, side.shape[2])[slots] = scale
                flat[slots] = codes
            else:
                flat[slots] = rows.to(side.dtype)

    def gather(self, layer: int, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values at `slots` [...]: [..., kv_heads, width] each, in the type `reads`."""
        keys, values = (
            self._read(side[layer], scales[layer], slots)
            for side, scales in ((self.keys, self._key_scales), (self.values, self._value_scales))
        )
        return keys, values

    def store_windows(self, layer: int, slots: torch.Tensor, rows: torch.Tensor, ratio: int) -> None:
        """Put `rows` [n, width] of windows of `ratio` tokens, the last of which are at `slots` [n], where
        `LayerKv.of_windows` says.
        """
        tiles, places = slots // ROW_TOKENS, slots % ROW_TOKENS // ratio
        if self._codes:
            rows, scale = self._codes(rows)
            self._key_scales[layer].view(-1, ROW_TOKENS)[tiles, places] = scale
        flat, elements = self._tiles(layer, places, rows.shape[1])
        flat[tiles.unsqueeze(1), elements] = rows.to(flat.dtype)

    def gather_windows(self, layer: int, slots: torch.Tensor, ratio: int, width: int) -> torch.Tensor:
        """Such rows: [n, width], in the type `reads`."""
        tiles, places = slots // ROW_TOKENS, slots % ROW_TOKENS // ratio
        flat, elements = self._tiles(layer, places, width)
        rows = flat[tiles.unsqueeze(1), elements].to(self.reads)
        if not self._codes:
            return rows
        return rows * self._key_scales[layer].view(-1, ROW_TOKENS)[tiles, places].unsqueeze(1)

    def _tiles(self, layer: int, places: torch.Tensor, width: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what a layer keeps of each 16 tokens, and where in it rows of so many elements are."""
        keys = self.keys[layer]
        elements = places.unsqueeze(1) * width + torch.arange(width, device=keys.device)
        return keys.view(-1, ROW_TOKENS * keys.shape[3]), elements

    def _read(self, side: torch.Tensor, scales: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        flat = side.view(-1, *side.shape[2:])
        rows = flat[slots].to(self.reads)
        if not self._codes:
            return rows
        return rows * scales.view(-1, side.shape[2])[slots].unsqueeze(-1)


def _int8(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of symmetric int8: the largest magnitude of a head becomes 127, halves go to even.

    Where a value is not finite the scale is NaN, and so is all that is read.
    """
    largest = rows.abs().amax(dim=-1, keepdim=True)
    finite = torch.isfinite(largest)
    usable = (largest >= _TOO_SMALL) & finite
    inverse = torch.where(usable, 127 / largest, 0)
    scale = torch.where(finite, torch.where(usable, largest / 127, 0), torch.nan)
    codes = torch.where(finite, rows * inverse, 0).round().to(torch.int8)
    return codes, scale.squeeze(-1)


# How elements are kept, and what makes codes and scales of rows; None: there are no scales.
CODECS: dict[str, tuple[torch.dtype, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None]] = {
    "f32": (torch.float32, None),
    "bf16": (torch.bfloat16, None),
    "int8": (torch.int8, _int8),
}
