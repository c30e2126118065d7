"""Pages of the native core's KV memory over stream sockets."""

from __future__ import annotations

from collections.abc import Sequence

from homenode import _native
from homenode.compute.kv_memory import KvMemory
from homenode.compute.native.kv_memory import NativeKvMemory


class NativePageStreams:
    """See `transfer.wire.page_stream.PageStreams`."""

    def receiver(self, memory: KvMemory, blocks: Sequence[int], tiles: Sequence[int]) -> _native.NativePageReceiver:
        """For pages that come. ValueError for blocks or tiles that are not there."""
        assert isinstance(memory, NativeKvMemory)
        return _native.NativePageReceiver.create(memory.handle, memory.level, blocks, tiles)

    def sender(self, memory: KvMemory, blocks: Sequence[int], tiles: Sequence[int]) -> _native.NativePageSender:
        """For pages that go. ValueError for blocks or tiles that are not there."""
        assert isinstance(memory, NativeKvMemory)
        return _native.NativePageSender.create(memory.handle, blocks, tiles)
