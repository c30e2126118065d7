"""KV memory of other engines that workers read in place: what each of them sees of it, and under which numbers."""

from __future__ import annotations

import os

import msgspec

from homenode.compute.kv_memory import KvLayout, KvRegion
from homenode.engine.channels.messages import Attach
from homenode.model.part import ModelPart

_MOST_BLOCKS = (1 << 31) - 1


def sliced(layout: KvLayout, part: ModelPart) -> KvLayout:
    """Return what a worker reads of another engine's KV memory: the layers and heads it has itself, wherever and with
    however many workers they are there.
    """
    regions = [_cut(region, layout, part) for region in layout.regions]
    return msgspec.structs.replace(
        layout,
        layers=part.layers.count,
        kv_heads=part.kv_heads.count,
        regions=tuple(region for region in regions if region is not None),
    )


def _cut(region: KvRegion, layout: KvLayout, part: ModelPart) -> KvRegion | None:
    first, past = layout.layers_of(region)
    layers, heads = part.layers, part.kv_heads
    first_layer, past_layer = max(first, layers.first), min(past, layers.end)
    first_head, past_head = max(region.first_head, heads.first), min(region.past_head, heads.end)
    if first_layer >= past_layer or first_head >= past_head:
        return None
    return msgspec.structs.replace(
        region,
        first_head=first_head - heads.first,
        past_head=past_head - heads.first,
        offset=region.offset
        + (first_layer - first) * region.layer_stride
        + (first_head - region.first_head) * region.head_stride,
        first_layer=first_layer - layers.first,
        past_layer=past_layer - layers.first,
    )


class Attached:
    """Neighbours' memory that the workers read in place: which blocks are whose, the same for all workers, now and
    later. Keeps the descriptors.
    """

    def __init__(self) -> None:
        self._of: dict[int, tuple[int, KvLayout]] = {}
        self._next = 0

    def add(self, fd: int, layout: KvLayout, num_blocks: int) -> int:
        """The first block of another memory. ValueError when there are no numbers left."""
        first = max(self._next, num_blocks)
        if first + layout.blocks >= _MOST_BLOCKS:
            raise ValueError("no numbers are left for the blocks of memory to be read in place")
        self._of[first], self._next = (os.dup(fd), layout), first + layout.blocks
        return first

    def remove(self, first: int) -> None:
        """ValueError where there is none."""
        if first not in self._of:
            raise ValueError(f"no memory is read in place from block {first} on")
        os.close(self._of.pop(first)[0])

    def of(self, part: ModelPart) -> list[tuple[Attach, int]]:
        """Return what a worker is to be told, each with the descriptor."""
        return [(Attach(first, sliced(layout, part)), fd) for first, (fd, layout) in self._of.items()]

    def close(self) -> None:
        """Let all go."""
        while self._of:
            os.close(self._of.popitem()[1][0])
