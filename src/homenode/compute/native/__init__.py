"""The native core: packed weights, paged KV memory and recorded programs, computed by a team of pinned threads in C++."""

from homenode.compute.native.backend import NativeBackend, NativeProgram
from homenode.compute.native.capability import LEVELS, available_levels
from homenode.compute.native.meter import NativeMeter

__all__ = ["LEVELS", "NativeBackend", "NativeMeter", "NativeProgram", "available_levels"]
