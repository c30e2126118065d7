"""Keys and values of layers of unlike shapes as cells alike, for engines that hand them over.

A cell is so many elements of the keys and values of one KV head of one layer as divide the heads of all layers. Cells
are numbered layer after layer, head after head, over the whole model: so engines find them whatever they have cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from homenode.compute.ops import KvGeometry
from homenode.model.spec import ModelSpec


@dataclass(frozen=True)
class KvCells:
    """`width`: elements of a cell's key, and of its value. `firsts`: of each layer with keys and values of its own the
    first cell; `count`: of all.
    """

    width: int
    firsts: Mapping[int, int]
    count: int

    def geometry(self, like: KvGeometry) -> KvGeometry:
        """KV memory of the whole model as cells: one layer with a head for each."""
        return KvGeometry.uniform(1, self.count, self.width, like.block_size, like.dtype)


def kv_cells(spec: ModelSpec) -> KvCells | None:
    """Those of a model; None where its layers have one shape, or a layer has keys and values that are not as wide as
    each other.
    """
    own = {}
    for layer in range(spec.num_layers):
        if (kv := spec.kv_of(layer)) is not None and spec.donor_of(layer) == layer:
            own[layer] = kv
    if len(set(own.values())) < 2 or any(kv.key_width != kv.value_width for kv in own.values()):
        return None
    width = math.gcd(*(kv.key_width for kv in own.values()))
    firsts, count = {}, 0
    for layer, kv in own.items():
        firsts[layer] = count
        count += kv.kv_heads * (kv.key_width // width)
    return KvCells(width, firsts, count)


def in_cells(spec: ModelSpec, whole: KvGeometry) -> KvGeometry:
    """The geometry by which KV memory of a whole model is handed over: its own where all layers have one shape."""
    cells = kv_cells(spec)
    return whole if cells is None else cells.geometry(whole)
