"""The place of KV memory in a file that other processes map: a share for each worker, in that one for each shape of
layers.

Layers of unlike shapes have KV memory each shape by itself (`NativeKvLayers`). To other engines it is one memory of
cells alike (`model.kv_cells`), wherever these lie.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from homenode.compute.kv_memory import KvLayout, KvRegion
from homenode.compute.ops import KvGeometry
from homenode.errors import HostError
from homenode.model.kv_cells import KvCells
from homenode.model.part import ModelPart

_HUGE_PAGE = 2 << 20  # csrc/host/memory.h: where a share may begin, and a region of it
_SLACK = 256  # csrc/kv/layout.h: behind a region


def shares_of_shapes(geometry: KvGeometry, num_blocks: int) -> list[tuple[int, int]]:
    """Return where each begins and how many bytes it has, one behind the other, for each shape of layers. Each has room
    for its KV memory in as many regions as it has heads; what is not used of it takes no memory.
    """
    shares, offset = [], 0
    for shape, layers in geometry.shapes.items():
        alike = replace(geometry, layers=(shape,) * len(layers))
        nbytes = alike.block_bytes * num_blocks + shape.kv_heads * (_HUGE_PAGE + _SLACK)
        nbytes += -nbytes % _HUGE_PAGE
        shares.append((offset, nbytes))
        offset += nbytes
    return shares


def sealed_file(nbytes: int) -> int:
    """The descriptor of a memfd that can neither grow nor shrink, of which nothing is taken yet. HostError when the
    machine refuses.
    """
    fd = -1
    try:
        fd = os.memfd_create("homenode KV cache", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, nbytes)
        # Not against writing: a worker that takes another's place maps its share as late as then.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise HostError(f"no memory that others could share for KV: {error}") from error
    return fd


def layout_of_cells(cells: KvCells, part: ModelPart, geometry: KvGeometry, of_shapes: Sequence[KvLayout]) -> KvLayout:
    """Return how the KV memory of a part of a model lies in its share, by cells of the whole model. `of_shapes`: how
    that of each shape lies in its own share.
    """
    firsts = cells.firsts_in(part)
    regions, like, end = list[KvRegion](), of_shapes[0], 0
    shares = shares_of_shapes(geometry, like.blocks)
    for (shape, numbers), layout, (begin, nbytes) in zip(geometry.shapes.items(), of_shapes, shares, strict=True):
        each = cells.of_head(shape)
        for place, number in enumerate(numbers):
            cell, head = firsts[number]
            first = cell + head * each
            for region in layout.regions:
                found = KvRegion(
                    first_head=first + region.first_head * each,
                    past_head=first + region.past_head * each,
                    offset=begin + region.offset + place * region.layer_stride,
                    layer_stride=region.layer_stride,
                    block_stride=region.block_stride,
                    head_stride=region.head_stride // each,
                    node=region.node,
                )
                before = regions[-1] if regions else None
                if before is not None and _goes_on(before, found):
                    regions[-1] = msgspec.structs.replace(before, past_head=found.past_head)
                else:
                    regions.append(found)
        end = begin + nbytes
    return msgspec.structs.replace(
        like,
        layers=1,
        kv_heads=cells.count,
        head_dim=cells.width,
        tile_bytes=like.tile_bytes * cells.width // like.head_dim,
        sides=1 if cells.alone else 2,
        nbytes=end,
        regions=tuple(regions),
    )


def _goes_on(before: KvRegion, after: KvRegion) -> bool:
    """Return whether the cells of a region follow those of another at the same distance, in number and in memory: so
    those of layers with one head are one region, and there are few however many layers a model has.
    """
    alike = (before.block_stride, before.head_stride, before.node) == (
        after.block_stride,
        after.head_stride,
        after.node,
    )
    length = (before.past_head - before.first_head) * before.head_stride
    return alike and after.first_head == before.past_head and after.offset == before.offset + length
