"""Lanes of the native core: announcements of KV pages from one engine to another of the same host."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

from homenode import _native
from homenode.compute.kv_memory import EpochWords, KvMemory
from homenode.compute.native.kv_memory import NativeEpochWords, NativeKvMemory
from homenode.compute.native.refusals import host_errors
from homenode.errors import PeerError


class NativeLaneReader:
    """The end that reads announcements."""

    def __init__(self, lane: _native.LaneReaderHandle) -> None:
        self.handle = lane

    @property
    def fd(self) -> int:
        """Return the descriptor for the other side."""
        return self.handle.fd

    @property
    def wake_fd(self) -> int:
        """A descriptor that can be read from when the writer has woken this side."""
        return self.handle.wake_fd

    @property
    def waker_fd(self) -> int:
        """The other end of its pipe: for the other side."""
        return self.handle.waker_fd

    def wake(self) -> None:
        """Make `wake_fd` readable, as the other side does."""
        self.handle.wake()

    def clear_wake(self) -> None:
        """Make `wake_fd` unreadable again."""
        self.handle.clear_wake()

    @property
    def has_news(self) -> bool:
        """Return whether something is there."""
        return self.handle.has_news

    @property
    def wake_hinted(self) -> bool:
        """Return whether the writer has hinted that something is to come, and nothing was taken since."""
        return self.handle.wake_hinted

    def clear_hint(self) -> None:
        """Nothing came after the last hint."""
        self.handle.clear_hint()

    def take(self) -> _native.Announcement | None:
        """Return what came next; None: nothing. PeerError for garbage."""
        try:
            return self.handle.take()
        except ValueError as error:
            raise PeerError(str(error), code="garbage") from error


class NativeLaneWriter:
    """The end that announces."""

    def __init__(self, lane: _native.LaneWriterHandle) -> None:
        self._lane = lane

    def hint_wake(self) -> None:
        """Something will be announced soon. From any thread."""
        self._lane.hint_wake()

    def export_pages(
        self,
        memory: KvMemory,
        words: EpochWords,
        buffer: bytes,
        pull_id: int,
        first: int,
        pages: int,
        limit: int,
        tokens: int,
    ) -> _native.NativePageExport:
        """Return what can be announced as soon as it is computed; see `transfer.wire.lane.LaneWriter`."""
        own, epochs = cast(NativeKvMemory, memory), cast(NativeEpochWords, words)
        return _native.NativePageExport.of(
            lane=self._lane,
            level=own.level,
            memory=own.handle,
            epoch_words=epochs.handle,
            buffer=buffer,
            pull_id=pull_id,
            range=_native.PageRange(first=first, pages=pages, tokens=tokens),
            limit=limit,
        )


class NativeLanes:
    """Makes them."""

    def create(self) -> NativeLaneReader:
        """HostError when there is no memory."""
        with host_errors():
            return NativeLaneReader(_native.LaneReaderHandle.create())

    def attach(self, fd: int, waker_fd: int) -> NativeLaneWriter:
        """PeerError for descriptors that are no lane's; they stay the caller's."""
        try:
            return NativeLaneWriter(_native.LaneWriterHandle.attach(fd, waker_fd))
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
    ) -> _native.NativeExpected:
        """Return what can be taken as soon as it is announced; see `transfer.wire.lane.Lanes`."""
        ours = cast(NativeKvMemory, own)
        theirs = [
            (name, cast(NativeKvMemory, one).handle, cast(NativeEpochWords, words).handle)
            for name, (one, words) in sources.items()
        ]
        return _native.NativeExpected.of(
            level=ours.level,
            own=ours.handle,
            sources=theirs,
            range=_native.PageRange(first=first, pages=pages, tokens=tokens),
            digest_bytes=digest_bytes,
            blocks=blocks,
            seen=list(seen),
        )

    def watch(self, lanes: Sequence[NativeLaneReader], epoll: int, seconds: float) -> bool:
        """Look for so long: whether a lane has something, or the epoll descriptor."""
        return _native.watch_lanes([lane.handle for lane in lanes], epoll, seconds)
