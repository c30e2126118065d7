"""Announcements between two engines of one host, past the socket: through memory that both map, and without a system
call where the other looks.

A lane belongs to a connection, whose accepting side made its memory and reads it. Its greeting has shown who may; what
says `after` n comes after the n-th frame of the connection and before the next one. Garbage in it ends the connection,
as garbage in a frame does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from homenode.compute.kv_memory import EpochWords, KvMemory
from homenode.transfer.wire.message import Ready

FDS_PER_LANE = 2


class Announced(Protocol):
    """`Ready` as it came over a lane. Whatever the other side writes meanwhile, this stays as it is."""

    @property
    def pull_id(self) -> int: ...

    @property
    def after(self) -> int: ...

    @property
    def first(self) -> int: ...

    @property
    def last(self) -> bool: ...

    @property
    def buffer(self) -> bytes: ...

    @property
    def pages(self) -> list[int]:
        """Pages of the buffer; at least one, none negative."""

    @property
    def count(self) -> int:
        """The number of these."""

    def blocks(self, base: int, first: int, count: int) -> list[int]:
        """Some of these, `base` added to each."""

    @property
    def digests(self) -> list[bytes]: ...

    @property
    def packed(self) -> tuple[bytes, bytes, bytes]:
        """Digests, pages and epochs as in `Ready`."""


class Expected(Protocol):
    """See `Lanes.expect`."""

    def fits(self, said: Any) -> bool:
        """Tell whether announced pages are what was expected, as far as can be told without reading them."""

    def rehearsal(self, pull_id: int) -> Announced:
        """An announcement like the one that is expected, which does not fit."""

    def take(self, said: Any) -> float | None:
        """Read announced pages, and copy those with a block of the own memory there; the seconds it took. None: they
        are not what was expected, or not, to the end, what was announced."""


class LaneReader(Protocol):
    """The end that reads announcements."""

    @property
    def fd(self) -> int:
        """The descriptor for the other side; it stays this one's."""

    @property
    def wake_fd(self) -> int:
        """A descriptor that can be read from when the writer has woken this side, which it does if nobody looked."""

    @property
    def waker_fd(self) -> int:
        """The other end of its pipe: for the other side, as `fd`."""

    def clear_wake(self) -> None:
        """Make `wake_fd` unreadable again."""

    def wake(self) -> None:
        """Make `wake_fd` readable, from this side."""

    @property
    def has_news(self) -> bool:
        """Tell whether something is there."""

    @property
    def wake_hinted(self) -> bool:
        """Tell whether the writer has hinted that something is to come. The hints of one that puts nothing again and
        again count no more."""

    def clear_hint(self) -> None:
        """Nothing came after the last hint."""

    def take(self) -> Announced | None:
        """Return what came next; None: nothing. PeerError for garbage."""


class PageExport(Protocol):
    """See `LaneWriter.export_pages`."""

    def announce(self, after: int, first: int, pages: Sequence[int], last: bool) -> float | None:
        """Read these pages of the memory for their digests, and announce where they are, under which epochs; the
        seconds it took. None, and nothing was announced: they are not what was foreseen, or not there, or the lane has
        no room."""

    @property
    def digests(self) -> list[bytes]:
        """Digests of the pages that were announced."""


class LaneWriter(Protocol):
    """The end that announces."""

    def hint_wake(self) -> None:
        """Something will be announced soon: a reader who sleeps wakes up, and looks for it for a moment. From any
        thread."""

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
    ) -> PageExport:
        """Return what can be announced as soon as it is computed: pages `first` and so on of `pages`, at most `limit`
        at once, of `tokens` from the first on."""


class Lanes(Protocol):
    """Maker of lanes (`kv_backend.NativeKv.lanes`)."""

    def create(self) -> LaneReader:
        """HostError when there is no memory."""

    def attach(self, fd: int, waker_fd: int) -> LaneWriter:
        """PeerError for descriptors that are no lane's; they stay the caller's."""

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
    ) -> Expected:
        """Return what can be taken as soon as it is announced: pages `first` and so on of `pages`, as many as there are
        `blocks` of the own memory for (-1: they are read where they are), none of them in `seen`. `sources`: by buffer;
        of pages as large as the own blocks. `tokens`: from `first` on."""

    def watch(self, lanes: Sequence[LaneReader], epoll: int, seconds: float) -> bool:
        """Look for so long, and let others run meanwhile: whether one has something, or the epoll descriptor."""


def ready_of(said: Announced) -> Ready:
    """The same as a frame's message."""
    digests, pages, epochs = said.packed
    return Ready(said.pull_id, said.first, len(said.pages), digests, said.last, said.buffer, pages, epochs)
