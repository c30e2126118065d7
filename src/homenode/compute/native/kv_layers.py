"""KV memory of layers of unlike shapes: one native KV cache for each shape, all with the same blocks.

A block has one id in all of them, and each has its own tiles, regions and homes, as if it were alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from homenode import _native
from homenode.compute.ops import KvGeometry


class NativeKvLayers:
    """`caches`: of each of the geometry's shapes, in their order, the KV memory of the layers that have it."""

    def __init__(self, geometry: KvGeometry, caches: Sequence[_native.KvCache], blocks: int) -> None:
        self.caches, self.blocks = tuple(caches), blocks
        self._places = {
            layer: (cache, number)
            for cache, layers in zip(caches, geometry.shapes.values(), strict=True)
            for number, layer in enumerate(layers)
        }

    def place(self, layer: int) -> tuple[_native.KvCache, int]:
        """The cache of a layer, and the layer's number in it. ValueError for a layer that is not there."""
        if layer not in self._places:
            raise ValueError(f"attention: layer {layer} of {len(self._places)}")
        return self._places[layer]

    @property
    def nbytes(self) -> int:
        """Return the bytes of all of them."""
        return sum(cache.nbytes for cache in self.caches)
