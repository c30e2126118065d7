"""A sequence's state in KV blocks, in which it is handed over to other engines.

The blocks are cut over ranks and stages as all KV memory is: a worker has of each block its KV heads in its layers. Of
its state it puts what goes with a KV head (`state_by_kv_head`) into that head's part of the blocks: what it has of the
head in block 0, layer after layer, then in block 1, and so on, as float32. So an engine with more ranks or fewer finds
with each head what it needs.
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
from homenode.model.state import floats_of_kv_head, state_by_kv_head

Bytes = npt.NDArray[np.uint8]


class StatePages:
    """Of one worker. `memory`: its KV memory; `state`: its state memory, both of `geometry`."""

    def __init__(
        self, memory: KvMemory, state: StateMemory, geometry: KvGeometry, spec: ModelSpec, part: ModelPart
    ) -> None:
        held = state_by_kv_head(spec, part)
        if geometry.state is None or held is None:
            raise InternalError("a state is to lie in KV blocks that have no place for it")
        layout = memory.layout
        self._memory, self._state, self._layers = memory, state, geometry.state.layers
        self._channels, self._matrices = held
        self._tiles = layout.block_size // TILE_TOKENS
        self._block = (layout.layers, layout.kv_heads, layout.head_bytes)
        self._floats = floats_of_kv_head(held, geometry.state)

    def store(self, slot: int, blocks: Sequence[int]) -> None:
        """Put the state in a slot into these blocks."""
        layers, count, size = self._block
        heads = np.zeros((count, self._floats), np.float32)
        for tail, matrices, tail_of_heads, matrices_of_heads in self._places(self._state.read_slot(slot), heads):
            tail_of_heads[...] = tail[:, self._channels].swapaxes(0, 1)
            matrices_of_heads[...] = matrices[self._matrices]
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
        found = np.zeros(sum(layer.nbytes for layer in self._layers) // 4, np.float32)
        for tail, matrices, tail_of_heads, matrices_of_heads in self._places(found, heads):
            tail[:, self._channels] = tail_of_heads.swapaxes(0, 1)
            matrices[self._matrices] = matrices_of_heads
        self._state.write_slot(slot, found)

    def _pieces(self, block: int, values: Bytes) -> Iterator[tuple[Bytes, Bytes]]:
        """The pieces of a block in memory, each with its part of the block's bytes."""
        at = 0
        for piece in self._memory.pieces(block, self._tiles):
            found = np.frombuffer(piece, np.uint8)
            yield found, values[at : at + len(found)]
            at += len(found)

    def _places(
        self, slot: FloatArray, heads: FloatArray
    ) -> Iterator[tuple[FloatArray, FloatArray, FloatArray, FloatArray]]:
        """Of each layer, in a slot as `StateMemory.read_slot` has it: the last inputs of its convolution [taps, channels],
        its matrices [heads, elements]; and the same in `heads` [KV heads, floats].
        """
        at, past, (count, channels), matrices = 0, 0, self._channels.shape, self._matrices.shape[1]
        for layer in self._layers:
            elements, inputs = layer.key_width * layer.value_width, layer.taps * layer.channels
            middle, end = at + inputs, at + inputs + layer.heads * elements
            of_heads, behind = past + layer.taps * channels, past + layer.taps * channels + matrices * elements
            yield (
                slot[at:middle].reshape(layer.taps, layer.channels),
                slot[middle:end].reshape(layer.heads, elements),
                heads[:, past:of_heads].reshape(count, layer.taps, channels),
                heads[:, of_heads:behind].reshape(count, matrices, elements),
            )
            at, past = end, behind
