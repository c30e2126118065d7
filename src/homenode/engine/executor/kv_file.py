"""The KV memory of an engine's workers as one file, of which each has a share: so all of it can be handed over as if
one worker had it.

The engine makes the file and keeps it; workers come and go. What a lost worker has computed stays where it is, and
whoever takes its place has the same share, with what that holds.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence

import msgspec

from homenode.compute.kv_memory import KvLayout, KvRegion
from homenode.compute.ops import KvGeometry
from homenode.engine.channels.messages import FileRange
from homenode.errors import HostError, InternalError
from homenode.model.part import ModelPart

_HUGE_PAGE = 2 << 20  # csrc/host/memory.h: where a share may begin, and a region of it
_SLACK = 256  # csrc/kernels/kv_layout.h: behind a region


def shares_of(geometries: Sequence[KvGeometry], num_blocks: int) -> list[FileRange]:
    """One behind the other. Each has room for its KV memory in as many regions as it has heads; what is not used of it
    takes no memory.
    """
    shares, offset = [], 0
    for geometry in geometries:
        nbytes = geometry.block_bytes * num_blocks + geometry.only_shape.kv_heads * (_HUGE_PAGE + _SLACK)
        nbytes += -nbytes % _HUGE_PAGE
        shares.append(FileRange(offset, nbytes))
        offset += nbytes
    return shares


def joined(parts: Sequence[ModelPart], layouts: Sequence[KvLayout], shares: Sequence[FileRange]) -> KvLayout:
    """What all workers have laid out in their shares, as one KV memory of the whole model. InternalError when they do
    not go together.
    """
    regions: list[KvRegion] = []
    for part, layout, share in zip(parts, layouts, shares, strict=True):
        regions += [_placed(region, layout, part, share) for region in layout.regions]
    like = layouts[0]
    if (
        len(
            {(each.head_dim, each.block_size, each.dtype, each.tile_bytes, each.blocks, each.sides) for each in layouts}
        )
        > 1
    ):
        raise InternalError("the workers have KV memory of several kinds")
    return msgspec.structs.replace(
        like,
        layers=max(part.layers.end for part in parts),
        kv_heads=max(part.kv_heads.end for part in parts),
        nbytes=sum(share.nbytes for share in shares),
        regions=tuple(regions),
    )


def _placed(region: KvRegion, layout: KvLayout, part: ModelPart, share: FileRange) -> KvRegion:
    """A region by the heads and layers of the whole model, and by its place in the file."""
    first, past = layout.layers_of(region)
    return msgspec.structs.replace(
        region,
        first_head=part.kv_heads.first + region.first_head,
        past_head=part.kv_heads.first + region.past_head,
        offset=share.offset + region.offset,
        first_layer=part.layers.first + first,
        past_layer=part.layers.first + past,
    )


class KvFile:
    """`fd`: the file, sealed in its size, of which nothing is taken yet; `shares`: what each worker has of it."""

    def __init__(self, geometries: Sequence[KvGeometry], num_blocks: int) -> None:
        """HostError when the machine refuses."""
        self.shares = shares_of(geometries, num_blocks)
        self._bytes = [geometry.block_bytes * num_blocks for geometry in geometries]
        self.fd = -1
        try:
            self.fd = os.memfd_create("homenode KV cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(self.fd, sum(share.nbytes for share in self.shares))
            # Not against writing: a worker that takes another's place maps its share as late as then.
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        except OSError as error:
            self.close()
            raise HostError(f"no memory that the workers could share for KV: {error}") from error

    def taken(self, number: int) -> int:
        """Bytes of memory that a worker's share takes when all of it is in use."""
        return self._bytes[number]

    def close(self) -> None:
        """The memory goes with the last mapping."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
