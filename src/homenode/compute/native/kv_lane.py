"""Lanes of the native core: what one engine says to another of the same host of pages that it lends."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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

    @property
    def has_news(self) -> bool:
        """Whether something is there."""
        return self.handle.has_news

    @property
    def promised(self) -> bool:
        """Whether something is to come."""
        return self.handle.promised

    def give_up(self) -> None:
        """It did not."""
        self.handle.give_up()

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

    def promise(self) -> None:
        """Something will be announced soon. From any thread."""
        self._lane.promise()

    def lend(
        self,
        memory: KvMemory,
        words: EpochWords,
        buffer: bytes,
        pull_id: int,
        first: int,
        pages: int,
        most: int,
        tokens: int,
    ) -> _native.Lending:
        """What can be announced as soon as it is computed; see `transfer.wire.lane.LaneWriter`."""
        own, epochs = cast(NativeKvMemory, memory), cast(NativeEpochWords, words)
        return _native.Lending.of(
            self._lane, own.level, own.handle, epochs.handle, buffer, pull_id, first, pages, most, tokens
        )


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

    def expect(
        self,
        sources: Mapping[bytes, tuple[KvMemory, EpochWords]],
        own: KvMemory,
        first: int,
        pages: int,
        tokens: int,
        digest_bytes: int,
        blocks: Sequence[int],
        seen: Collection[int],
    ) -> _native.Expected:
        """What can be taken as soon as it is announced; see `transfer.wire.lane.Lanes`."""
        ours = cast(NativeKvMemory, own)
        theirs = [
            (name, cast(NativeKvMemory, one).handle, cast(NativeEpochWords, words).handle)
            for name, (one, words) in sources.items()
        ]
        return _native.Expected.of(
            ours.level, ours.handle, theirs, first, pages, tokens, digest_bytes, blocks, list(seen)
        )

    def watch(self, lanes: Sequence[NativeLaneReader], epoll: int, seconds: float) -> bool:
        """Look for so long: whether a lane has something, or the epoll descriptor."""
        return _native.watch_lanes([lane.handle for lane in lanes], epoll, seconds)
