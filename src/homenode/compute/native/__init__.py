"""The native core: packed weights, paged KV memory and recorded programs, computed by a team of pinned threads in C++."""

from homenode.compute.native.backend import NativeBackend, NativeProgram
from homenode.compute.native.capability import LEVELS, available_levels

__all__ = ["LEVELS", "NativeBackend", "NativeProgram", "available_levels"]
