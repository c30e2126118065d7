"""The native core: packed weights, paged KV memory and recorded programs, computed by a team of pinned threads in C++."""

from homenode.compute.native.backend import NativeBackend, NativeProgram
from homenode.compute.native.capability import LEVELS, LevelState, available_levels, choose_level, level_states
from homenode.compute.native.meter import NativeMeter
from homenode.compute.native.ranks import NativeRankGroup, RankMemory
from homenode.compute.native.ring import RingMemory, RingReader, RingWriter

__all__ = [
    "LEVELS",
    "LevelState",
    "NativeBackend",
    "NativeMeter",
    "NativeProgram",
    "NativeRankGroup",
    "RankMemory",
    "RingMemory",
    "RingReader",
    "RingWriter",
    "available_levels",
    "choose_level",
    "level_states",
]
