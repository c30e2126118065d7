"""Pages of the native core's KV memory over stream sockets."""

from __future__ import annotations

from collections.abc import Sequence

from homenode import _native
from homenode.compute.kv_memory import KvMemory
from homenode.compute.native.kv_memory import NativeKvMemory


class NativePageStreams:
    """See `transfer.wire.page_stream.PageStreams`."""

    def receiver(self, memory: KvMemory, blocks: Sequence[int], tiles: Sequence[int]) -> _native.PageReceiver:
        """For pages that come. ValueError for blocks or tiles that are not there."""
        assert isinstance(memory, NativeKvMemory)
        return _native.PageReceiver.create(memory.handle, memory.level, blocks, tiles)

    def sender(self, memory: KvMemory, blocks: Sequence[int], tiles: Sequence[int]) -> _native.PageSender:
        """For pages that go. ValueError for blocks or tiles that are not there."""
        assert isinstance(memory, NativeKvMemory)
        return _native.PageSender.create(memory.handle, blocks, tiles)
