"""The native core: packed weights, paged KV memory and recorded programs, computed by pinned threads in C++.

Importing this raises HostError where the core was not compiled, or cannot be loaded."""

from homenode.errors import HostError
from homenode.installation import again_command

try:
    import homenode._native  # noqa: F401  (every module of this folder needs it)
except ImportError as error:
    raise HostError(
        f"the native core of homenode cannot be loaded, so nothing can be computed with it ({error}). Where it was "
        "not built when "
        f"homenode was installed: install g++ and the Python headers (python3-dev), then `{again_command()}`"
    ) from error

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
