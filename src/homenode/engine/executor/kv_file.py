"""The KV memory of an engine's workers as one file, of which each has a share: so all of it can be handed over as if
one worker had it.

The engine makes the file and keeps it; workers come and go. What a lost worker has computed stays where it is, and
whoever takes its place has the same share, with what that holds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from homenode.compute.kv_memory import KvLayout, KvRegion
from homenode.compute.ops import KvGeometry
from homenode.engine.channels.messages import FileRange
from homenode.engine.kv_transfer.shares import sealed_file, shares_of_shapes
from homenode.errors import InternalError
from homenode.model.kv_cells import KvCells
from homenode.model.part import ModelPart


def shares_of(geometries: Sequence[KvGeometry], num_blocks: int) -> list[FileRange]:
    """One behind the other: see `kv_transfer.shares.shares_of_shapes`."""
    shares, offset = [], 0
    for geometry in geometries:
        nbytes = sum(size for _, size in shares_of_shapes(geometry, num_blocks))
        shares.append(FileRange(offset, nbytes))
        offset += nbytes
    return shares


def joined(
    parts: Sequence[ModelPart], layouts: Sequence[KvLayout], shares: Sequence[FileRange], cells: KvCells | None = None
) -> KvLayout:
    """Return what all workers have laid out in their shares, as one KV memory of the whole model. `cells`: by which
    they lie where layers have unlike shapes. InternalError when they do not go together.
    """
    regions, like, first_layers, layers = list[KvRegion](), layouts[0], dict[int, int](), 0
    for part, layout, share in zip(parts, layouts, shares, strict=True):
        if part.stage not in first_layers:
            first_layers[part.stage], layers = layers, layers + layout.layers
        if cells is not None:
            regions += [msgspec.structs.replace(r, offset=share.offset + r.offset) for r in layout.regions]
        else:
            first = first_layers[part.stage]
            regions += [_placed(region, layout, part, share, first) for region in layout.regions]
    kinds = {(each.head_dim, each.block_size, each.dtype, each.tile_bytes, each.blocks, each.sides) for each in layouts}
    if len(kinds) > 1:
        raise InternalError("the workers have KV memory of several kinds")
    return msgspec.structs.replace(
        like,
        layers=layers if cells is None else 1,
        kv_heads=max(part.kv_heads.end for part in parts) if cells is None else cells.count,
        nbytes=sum(share.nbytes for share in shares),
        regions=tuple(regions),
    )


def _placed(region: KvRegion, layout: KvLayout, part: ModelPart, share: FileRange, first_layer: int) -> KvRegion:
    """A region by the heads and layers of the whole model's KV memory, and by its place in the file. `first_layer`: of
    the part's layers with keys and values.
    """
    first, past = layout.layers_of(region)
    return msgspec.structs.replace(
        region,
        first_head=part.kv_heads.first + region.first_head,
        past_head=part.kv_heads.first + region.past_head,
        offset=share.offset + region.offset,
        first_layer=first_layer + first,
        past_layer=first_layer + past,
    )


class KvFile:
    """`fd`: the file, sealed in its size, of which nothing is taken yet; `shares`: what each worker has of it."""

    def __init__(self, geometries: Sequence[KvGeometry], num_blocks: int) -> None:
        """HostError when the machine refuses."""
        geometries = [replace(geometry, drafting=None) for geometry in geometries]  # no other engine drafts with it
        self.shares = shares_of(geometries, num_blocks)
        self._bytes = [geometry.block_bytes * num_blocks for geometry in geometries]
        self.fd = sealed_file(sum(share.nbytes for share in self.shares))

    def taken(self, number: int) -> int:
        """Bytes of memory that a worker's share takes when all of it is in use."""
        return self._bytes[number]

    def close(self) -> None:
        """The memory goes with the last mapping."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
