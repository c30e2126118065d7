"""The blocks of an engine's KV memory as bytes: of all its workers, shapes of layers and heads, one behind the other;
and the slots of its state memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from homenode.compute.kv_memory import TILE_TOKENS, KvMemory
from homenode.compute.ops import StateMemory


class KvBlocks:
    """`memories`: of each worker and each shape of layers, all mapped into this process. `state`: the state memory of
    the one worker; None: no layer keeps a state.
    """

    def __init__(self, memories: Sequence[KvMemory], state: StateMemory = None) -> None:
        self._memories = [(memory, memory.layout.block_size // TILE_TOKENS) for memory in memories]
        self._state = state
        self.nbytes = sum(part.nbytes for part in self.parts(0))
        self.state_nbytes = 0 if state is None else state.read_slot(0).nbytes

    def parts(self, block: int) -> list[memoryview]:
        """The parts of a block, in the order in which they are kept."""
        return [piece for memory, tiles in self._memories for piece in memory.pieces(block, tiles)]

    def copy(self, block: int) -> bytearray:
        """Return what lies in a block."""
        content = bytearray(self.nbytes)
        at, view = 0, memoryview(content)
        for part in self.parts(block):
            view[at : at + part.nbytes] = part.cast("B")
            at += part.nbytes
        return content

    def fill(self, block: int, content: bytes | bytearray) -> None:
        """Have a block hold this."""
        at, view = 0, memoryview(content)
        for part in self.parts(block):
            part.cast("B")[:] = view[at : at + part.nbytes]
            at += part.nbytes

    def copy_state(self, slot: int) -> bytearray:
        """Return the state in a slot."""
        return bytearray(memoryview(self._state.read_slot(slot)).cast("B"))

    def fill_state(self, slot: int, content: bytes | bytearray) -> None:
        """Have a slot hold this state."""
        self._state.write_slot(slot, np.frombuffer(content, np.float32))
