"""The native core as `carriers.carrier.KvBackend`: what maps and copies KV memory in an engine."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from homenode import _native
from homenode.compute.kv_memory import Copier, EpochWords, KvLayout, KvMemory
from homenode.compute.native.kv_lane import NativeLanes
from homenode.compute.native.kv_memory import NativeEpochWords, NativeKvMemory, copy_kv


class NativePageStreams:
    """See `transfer.wire.stream.PageStreams`."""

    def receiver(self, memory: KvMemory, blocks: Sequence[int], tiles: Sequence[int]) -> _native.NativePageReceiver:
        """Return the stream for pages that come. ValueError for blocks or tiles that are not there."""
        assert isinstance(memory, NativeKvMemory)
        return _native.NativePageReceiver.create(memory.handle, memory.level, blocks, tiles)

    def sender(self, memory: KvMemory, blocks: Sequence[int], tiles: Sequence[int]) -> _native.NativePageSender:
        """Return the stream for pages that go. ValueError for blocks or tiles that are not there."""
        assert isinstance(memory, NativeKvMemory)
        return _native.NativePageSender.create(memory.handle, blocks, tiles)


class NativeKv:
    """See the module."""

    def __init__(self, map_kv: Callable[..., NativeKvMemory], keeps_files: bool = False) -> None:
        """`map_kv`: `NativeBackend.map_kv`, so that the kernels are of the engine's own level. `keeps_files`: mapped
        memory has a descriptor, for others of this engine."""
        self.copy: Copier = copy_kv
        self.lanes: Any = NativeLanes()  # it takes only what its own lanes give, which no interface says
        self.streams: NativePageStreams | None = NativePageStreams()
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
