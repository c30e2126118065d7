"""Lanes of the native core: what one engine says to another of the same host of pages that it lends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from homenode import _native
from homenode.compute.kv_memory import EpochWords, KvMemory
from homenode.compute.native.kv_memory import NativeEpochWords, NativeKvMemory
from homenode.compute.native.refusals import host_errors
from homenode.errors import PeerError


class NativeLaneReader:
    """The end of who is told."""

    def __init__(self, lane: _native.LaneReader) -> None:
        self.handle = lane

    @property
    def fd(self) -> int:
        """For the other side."""
        return self.handle.fd

    @property
    def bell(self) -> int:
        """Can be read from when there is something, if nobody looked."""
        return self.handle.bell

    @property
    def rope(self) -> int:
        """What it is rung by: for the other side."""
        return self.handle.rope

    def ring(self) -> None:
        """As the other side does."""
        self.handle.ring()

    def hear_bell(self) -> None:
        """Make it quiet."""
        self.handle.hear_bell()

    def take(self) -> _native.Announcement | None:
        """What came next; None: nothing. PeerError for garbage."""
        try:
            return self.handle.take()
        except ValueError as error:
            raise PeerError(str(error), code="garbage") from error


class NativeLaneWriter:
    """The end of who tells."""

    def __init__(self, lane: _native.LaneWriter) -> None:
        self._lane = lane

    def announce(
        self,
        memory: KvMemory,
        words: EpochWords,
        buffer: bytes,
        pull_id: int,
        after: int,
        first: int,
        pages: Sequence[int],
        tokens: int,
        last: bool,
    ) -> tuple[list[bytes], float] | None:
        """Digest pages and tell of them; None, and nothing was said, where that has no room, or for pages that are not there."""
        own, epochs = cast(NativeKvMemory, memory), cast(NativeEpochWords, words)
        try:
            return self._lane.announce(own.level, own.handle, epochs.handle, buffer, pull_id, after, first, pages, tokens, last)
        except ValueError:
            return None


class NativeLanes:
    """Makes them."""

    def create(self) -> NativeLaneReader:
        """HostError when there is no memory."""
        with host_errors():
            return NativeLaneReader(_native.LaneReader.create())

    def attach(self, fd: int, rope: int) -> NativeLaneWriter:
        """PeerError for descriptors that are no lane's; they stay the caller's."""
        try:
            return NativeLaneWriter(_native.LaneWriter.attach(fd, rope))
        except (OSError, ValueError) as error:
            raise PeerError(f"a peer's lane cannot be used: {error}", code="lane") from error

    def take_pages(
        self, said: _native.Announcement, source: KvMemory, words: EpochWords, own: KvMemory, blocks: Sequence[int], tokens: int
    ) -> bool:
        """Read announced pages, and copy those with an own block (not -1). Whether they are, to the end, what was announced."""
        theirs, epochs, ours = cast(NativeKvMemory, source), cast(NativeEpochWords, words), cast(NativeKvMemory, own)
        return said.take_pages(theirs.level, theirs.handle, epochs.handle, ours.handle, blocks, tokens)

    def watch(self, lanes: Sequence[NativeLaneReader], epoll: int, seconds: float) -> bool:
        """Look for so long: whether a lane has something, or the epoll descriptor."""
        return _native.watch_lanes([lane.handle for lane in lanes], epoll, seconds)
