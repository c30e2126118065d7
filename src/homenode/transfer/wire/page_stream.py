"""KV pages over a stream socket in one call for many of them: see csrc/kv/stream.h. Native:
`compute.native.kv_stream`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from homenode.compute.kv_memory import KvMemory


class PageReceiver(Protocol):
    """Takes the bytes of some pages in order, and digests them while they come."""

    def receive(self, socket: int, most: int, wait_us: int) -> int:
        """Read about `most` bytes, waiting no longer than so many microseconds for more of them. How many came; 0:
        none, -1: the stream has ended. OSError."""

    def take(self, data: bytes, /) -> int:
        """What was read already; how many bytes of it belong here."""

    @property
    def complete(self) -> bool:
        """All bytes have come."""

    def digests(self) -> list[bytes]:
        """As `KvMemory.digests`, of the pages that are complete."""


class PageSender(Protocol):
    """Writes the bytes of some pages in order."""

    def send(self, socket: int, most: int) -> int:
        """Write about `most` bytes, as far as the kernel takes them without waiting. How many that were. OSError."""

    @property
    def done(self) -> bool:
        """All bytes were written."""


class PageStreams(Protocol):
    """Makes both. The pages are these blocks, of each so many tiles of keys and of values. ValueError for blocks or
    tiles that are not there."""

    def receiver(self, memory: KvMemory, blocks: Sequence[int], tiles: Sequence[int]) -> PageReceiver:
        """For pages that come."""

    def sender(self, memory: KvMemory, blocks: Sequence[int], tiles: Sequence[int]) -> PageSender:
        """For pages that go."""
