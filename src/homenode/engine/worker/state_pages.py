"""A sequence's state in KV blocks, in which it is handed over to other engines.

The blocks are cut over ranks and stages as all KV memory is: a worker has of each block its KV heads in its layers. Of
its state it puts what goes with a KV head (`state_by_kv_head`) into that head's part of the blocks: what it has of the
head in block 0, layer after layer, of each shape of layers, then in block 1, and so on, as float32. So an engine with
more ranks or fewer finds with each head what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from homenode.compute.kv_memory import TILE_TOKENS, KvMemory
from homenode.compute.ops import FloatArray, IntArray, KvGeometry, StateMemory
from homenode.errors import InternalError
from homenode.model.part import ModelPart
from homenode.model.spec import ModelSpec
from homenode.model.state import floats_of_kv_head, state_by_kv_head

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class _LayerPlace:
    """The place of a layer's state: `tail`, the last inputs of its convolution [taps, channels], and `matrices` [heads,
    elements]; and what of these goes with KV heads, by `channels` and `numbers` (see `state_by_kv_head`).
    """

    channels: IntArray
    numbers: IntArray
    tail: FloatArray
    matrices: FloatArray
    tail_of_heads: FloatArray
    matrices_of_heads: FloatArray


class StatePages:
    """The state pages of one worker. `memories`: its KV memory, of each shape of layers; `state`: its state memory, all
    of `geometry`.
    """

    def __init__(
        self, memories: Sequence[KvMemory], state: StateMemory, geometry: KvGeometry, spec: ModelSpec, part: ModelPart
    ) -> None:
        held = state_by_kv_head(spec, part)
        if geometry.state is None or held is None:
            raise InternalError("a state is to lie in KV blocks that have no place for it")
        self._memories, self._state, self._heads = memories, state, memories[0].layout.kv_heads
        assert all(memory.layout.kv_heads == self._heads for memory in memories)  # `state_handover_problem`
        self._layers = [(layer, *of_heads) for layer, of_heads in zip(geometry.state.layers, held, strict=True)]
        self._block_bytes = sum(memory.layout.layers * memory.layout.head_bytes for memory in memories)  # of a head
        self._floats = floats_of_kv_head(held, geometry.state)

    def store(self, slot: int, blocks: Sequence[int]) -> None:
        """Put the state in a slot into these blocks."""
        heads = np.zeros((self._heads, self._floats), np.float32)
        for place in self._places(self._state.read_slot(slot), heads):
            place.tail_of_heads[...] = place.tail[:, place.channels].swapaxes(0, 1)
            place.matrices_of_heads[...] = place.matrices[place.numbers]
        filled = np.zeros((self._heads, len(blocks) * self._block_bytes), np.uint8)
        filled[:, : 4 * self._floats] = heads.view(np.uint8)
        for memory, block, of_heads in self._parts(blocks, filled):
            values = np.ascontiguousarray(of_heads.transpose(1, 0, 2)).reshape(-1)
            for piece, part in _pieces(memory, block, values):
                piece[:] = part

    def load(self, blocks: Sequence[int], slot: int) -> None:
        """Make a slot what `store` put into these blocks."""
        filled = np.zeros((self._heads, len(blocks) * self._block_bytes), np.uint8)
        for memory, block, of_heads in self._parts(blocks, filled):
            values = np.zeros(of_heads.size, np.uint8)
            for piece, part in _pieces(memory, block, values):
                part[:] = piece
            of_heads[...] = values.reshape(of_heads.swapaxes(0, 1).shape).swapaxes(0, 1)
        heads = np.ascontiguousarray(filled[:, : 4 * self._floats]).view(np.float32)
        found = np.zeros(sum(layer.nbytes for layer, _, _ in self._layers) // 4, np.float32)
        for place in self._places(found, heads):
            place.tail[:, place.channels] = place.tail_of_heads.swapaxes(0, 1)
            place.matrices[place.numbers] = place.matrices_of_heads
        self._state.write_slot(slot, found)

    def _parts(self, blocks: Sequence[int], filled: Bytes) -> Iterator[tuple[KvMemory, int, Bytes]]:
        """Yield of each block in each memory its part of `filled` [heads, bytes of all blocks]: [heads,
        layers, bytes].
        """
        by_block, at = filled.reshape(self._heads, len(blocks), self._block_bytes), 0
        for memory in self._memories:
            layers, size = memory.layout.layers, memory.layout.head_bytes
            for number, block in enumerate(blocks):
                part = by_block[:, number, at : at + layers * size]
                yield memory, block, part.reshape(self._heads, layers, size)
            at += layers * size

    def _places(self, slot: FloatArray, heads: FloatArray) -> Iterator[_LayerPlace]:
        """Yield the place of each layer. `slot`: as `StateMemory.read_slot` has it; `heads`: [KV heads, floats]."""
        at, past, count = 0, 0, len(heads)
        for layer, channels, numbers in self._layers:
            elements, inputs, width = (
                layer.key_width * layer.value_width,
                layer.taps * layer.channels,
                channels.shape[1],
            )
            middle, end = at + inputs, at + inputs + layer.heads * elements
            of_heads = past + layer.taps * width
            behind = of_heads + numbers.shape[1] * elements
            yield _LayerPlace(
                channels,
                numbers,
                slot[at:middle].reshape(layer.taps, layer.channels),
                slot[middle:end].reshape(layer.heads, elements),
                heads[:, past:of_heads].reshape(count, layer.taps, width),
                heads[:, of_heads:behind].reshape(count, numbers.shape[1], elements),
            )
            at, past = end, behind


def _pieces(memory: KvMemory, block: int, values: Bytes) -> Iterator[tuple[Bytes, Bytes]]:
    """The pieces of a block in memory, each with its part of the block's bytes."""
    at = 0
    for piece in memory.pieces(block, memory.layout.block_size // TILE_TOKENS):
        found = np.frombuffer(piece, np.uint8)
        yield found, values[at : at + len(found)]
        at += len(found)
