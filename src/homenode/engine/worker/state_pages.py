"""A sequence's state in KV blocks, in which it is handed over to other engines.

The blocks are cut over ranks and stages as all KV memory is: a worker has of each block its KV heads in its layers. Of
its state it puts the groups that go with a KV head (`groups_of_a_kv_head`) into that head's part of the blocks: what it
has of the head in block 0, layer after layer, then in block 1, and so on, as float32. So an engine with more ranks or
fewer finds with each head what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from homenode.compute.kv_memory import TILE_TOKENS, KvMemory
from homenode.compute.ops import FloatArray, KvGeometry, StateMemory
from homenode.errors import InternalError
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec
from homenode.model.state import groups_of_a_kv_head

Bytes = npt.NDArray[np.uint8]


class StatePages:
    """Of one worker. `memory`: its KV memory; `state`: its state memory, both of `geometry`."""

    def __init__(
        self, memory: KvMemory, state: StateMemory, geometry: KvGeometry, spec: ModelSpec, part: ModelPart
    ) -> None:
        groups = groups_of_a_kv_head(spec, part)
        if geometry.state is None or spec.delta is None or groups is None:
            raise InternalError("a state is to lie in KV blocks that have no place for it")
        layout = memory.layout
        self._memory, self._state, self._layers, self._delta = memory, state, geometry.state.layers, spec.delta
        self._groups = groups
        self._tiles = layout.block_size // TILE_TOKENS
        self._block = (layout.layers, layout.kv_heads, layout.head_bytes)
        self._floats = geometry.state.slot_bytes // (4 * layout.kv_heads)  # of a KV head

    def store(self, slot: int, blocks: Sequence[int]) -> None:
        """Put the state in a slot into these blocks."""
        layers, count, size = self._block
        heads = np.zeros((count, self._floats), np.float32)
        for of_slot, of_head in self._places(self._state.read_slot(slot), heads):
            of_head[...] = of_slot
        filled = np.zeros((count, len(blocks) * layers * size), np.uint8)
        filled[:, : 4 * self._floats] = heads.view(np.uint8)
        by_block = filled.reshape(count, len(blocks), layers, size).transpose(1, 2, 0, 3)
        for block, values in zip(blocks, by_block, strict=True):
            for piece, part in self._pieces(block, values.reshape(-1)):
                piece[:] = part

    def load(self, blocks: Sequence[int], slot: int) -> None:
        """Make a slot what `store` put into these blocks."""
        layers, count, size = self._block
        by_block = np.zeros((len(blocks), layers, count, size), np.uint8)
        for block, values in zip(blocks, by_block, strict=True):
            for piece, part in self._pieces(block, values.reshape(-1)):
                part[:] = piece
        filled = by_block.transpose(2, 0, 1, 3).reshape(count, -1)[:, : 4 * self._floats]
        heads = np.ascontiguousarray(filled).view(np.float32)
        slot_values = np.zeros(heads.size, np.float32)
        for of_slot, of_head in self._places(slot_values, heads):
            of_slot[...] = of_head
        self._state.write_slot(slot, slot_values)

    def _pieces(self, block: int, values: Bytes) -> Iterator[tuple[Bytes, Bytes]]:
        """The pieces of a block in memory, each with its part of the block's bytes."""
        at = 0
        for piece in self._memory.pieces(block, self._tiles):
            found = np.frombuffer(piece, np.uint8)
            yield found, values[at : at + len(found)]
            at += len(found)

    def _places(self, slot: FloatArray, heads: FloatArray) -> Iterator[tuple[FloatArray, FloatArray]]:
        """The same values in a slot, as `StateMemory.read_slot` has them, and in `heads` [KV heads, floats]."""
        delta, at, past = self._delta, 0, 0
        count, keys = len(heads), len(heads) * self._groups
        each = delta.value_heads // delta.key_heads
        order = (each, keys) if delta.interleaved else (keys, each)

        def by_head(values: FloatArray, axis: int) -> FloatArray:
            """[value heads ...] from axis `axis` on, as [KV heads, ..., groups, value heads of a group, ...]."""
            parted = values.reshape(*values.shape[:axis], *order, *values.shape[axis + 1 :])
            parted = parted.swapaxes(axis, axis + 1) if delta.interleaved else parted
            parted = parted.reshape(*parted.shape[:axis], count, self._groups, *parted.shape[axis + 1 :])
            return np.moveaxis(parted, axis, 0)

        for layer in self._layers:
            tail = slot[at : at + layer.taps * layer.channels].reshape(layer.taps, layer.channels)
            at += tail.size
            matrices = slot[at : at + layer.heads * layer.key_width * layer.value_width]
            at += matrices.size
            key_columns = keys * delta.key_width
            queries, states = (
                np.moveaxis(part.reshape(layer.taps, count, -1), 1, 0)
                for part in (tail[:, :key_columns], tail[:, key_columns : 2 * key_columns])
            )
            values = by_head(tail[:, 2 * key_columns :].reshape(layer.taps, layer.heads, delta.value_width), 1)
            squares = by_head(matrices.reshape(layer.heads, layer.key_width, layer.value_width), 0)
            for part in (queries, states, values, squares):
                width = part[0].size
                yield part, heads[:, past : past + width].reshape(part.shape)
                past += width
