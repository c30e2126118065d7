"""Keys and values of layers of unlike shapes as cells alike, for engines that hand them over.

A cell is so many elements of the keys and values of one KV head of one layer as divide the heads of all layers; where
layers keep keys alone, as latents and the keys of indexers, of the keys, and of the values of other layers. Cells are
numbered layer after layer, head after head, over the whole model, those of indexers and of pooled rows behind all
others: so engines find them whatever they have cut.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from homenode.compute.ops import KvGeometry, LayerKv
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec


@dataclass(frozen=True)
class KvCells:
    """`width`: elements of a cell's key, and of its value unless keys are `alone`. `firsts`: of each layer with keys
    and values of its own the first cell; `index_firsts`: of each with an indexer that of its keys; `pooled_firsts`: of
    each with pooled rows that of these; `count`: of all.
    """

    width: int
    alone: bool
    firsts: Mapping[int, int]
    index_firsts: Mapping[int, int]
    pooled_firsts: Mapping[int, int]
    count: int

    def of_head(self, kv: LayerKv) -> int:
        """Cells of a head of a layer that keeps this; where they are `alone`, values follow the keys."""
        return kv.key_width // self.width * (kv.sides if self.alone else 1)

    def geometry(self, like: KvGeometry) -> KvGeometry:
        """KV memory of the whole model as cells: one layer with a head for each."""
        cells = LayerKv(self.count, self.width, 0 if self.alone else self.width)
        return KvGeometry((cells,), like.block_size, like.dtype)

    def firsts_in(self, part: ModelPart) -> list[tuple[int, int]]:
        """Return of each layer of a part's KV memory, in its order (`weights.load.layers_kv`), the first cell of all
        heads, and the first head that is here.
        """
        here = range(part.layers.first, part.layers.end)
        own = [(self.firsts[layer], part.heads_in(layer)[1].first) for layer in here if layer in self.firsts]
        behind = (self.index_firsts, self.pooled_firsts)
        return own + [(firsts[layer], 0) for firsts in behind for layer in here if layer in firsts]


def kv_cells(spec: ModelSpec) -> KvCells | None:
    """Return those of a model; None where its layers have one shape, or a layer has keys and values that are not as
    wide as each other.
    """
    own = dict(_own_layers(spec))
    index = {layer: spec.index_kv(layer) for layer in spec.index_layers(0, spec.num_layers)}
    pooled = {layer: spec.pooled_kv(layer) for layer in spec.pooled_layers(0, spec.num_layers)}
    shapes = [*own.values(), *index.values(), *pooled.values()]
    if len(set(shapes)) < 2:
        return None
    if any(kv.value_width not in (0, kv.key_width) for kv in shapes):
        return None
    width, alone = math.gcd(*(kv.key_width for kv in shapes)), any(kv.sides == 1 for kv in shapes)
    cells = KvCells(width, alone, {}, {}, {}, 0)
    ends = itertools.accumulate((kv.kv_heads * cells.of_head(kv) for kv in shapes), initial=0)
    firsts, index_firsts, pooled_firsts = ({layer: next(ends) for layer in having} for having in (own, index, pooled))
    return KvCells(width, alone, firsts, index_firsts, pooled_firsts, next(ends))


def _own_layers(spec: ModelSpec) -> Iterator[tuple[int, LayerKv]]:
    """The layers that keep keys and values of their own, and what each keeps."""
    for layer in range(spec.num_layers):
        if (kv := spec.kv_of(layer)) is not None and spec.donor_of(layer) == layer:
            yield layer, kv


def in_cells(spec: ModelSpec, whole: KvGeometry) -> KvGeometry:
    """The geometry by which KV memory of a whole model is handed over: its own where all layers have one shape."""
    cells = kv_cells(spec)
    return whole if cells is None else cells.geometry(whole)
