"""The native core as `carriers.carrier.KvBackend`: what maps and copies KV memory in an engine."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import cast

from homenode.compute.kv_memory import Copier, EpochWords, KvLayout, KvMemory
from homenode.compute.native.kv_lane import NativeLanes
from homenode.compute.native.kv_memory import NativeEpochWords, NativeKvMemory, copy_kv
from homenode.compute.native.kv_stream import NativePageStreams
from homenode.transfer.wire.lane import Lanes
from homenode.transfer.wire.page_stream import PageStreams


class NativeKv:
    """See the module."""

    def __init__(self, map_kv: Callable[..., NativeKvMemory], keeps_files: bool = False) -> None:
        """`map_kv`: `NativeBackend.map_kv`, so that the kernels are of the engine's own level. `keeps_files`: mapped
        memory has a descriptor, for others of this engine."""
        self.copy: Copier = copy_kv
        self.lanes: Lanes | None = cast(Lanes, NativeLanes())  # takes what its own lanes give
        self.streams: PageStreams | None = NativePageStreams()
        self._map_kv, self._keeps_files = map_kv, keeps_files

    def map_memory(self, fd: int, layout: KvLayout, *, writable: bool) -> KvMemory:
        """See `KvBackend`."""
        if not self._keeps_files:
            return self._map_kv(fd, layout, writable=writable)
        own = os.dup(fd)
        try:
            memory = self._map_kv(own, layout, writable=writable, own=True)
        except BaseException:
            os.close(own)
            raise
        weakref.finalize(memory, os.close, own)
        return memory

    def create_words(self, count: int) -> EpochWords:
        """See `KvBackend`."""
        return NativeEpochWords.create(count)

    def map_words(self, fd: int, count: int) -> EpochWords:
        """See `KvBackend`."""
        return NativeEpochWords.map(fd, count)
