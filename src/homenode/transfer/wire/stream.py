"""Pages and frames as the bytes of a stream: what reads and writes pages past the interpreter, payloads that come,
and the queue of what is to be written."""

from __future__ import annotations

import hashlib
import itertools
import socket
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from homenode.compute.kv_memory import KvMemory
from homenode.net.frame_mac import verify
from homenode.net.frames import MAC_BYTES, FrameError, FrameParser


class PageReceiver(Protocol):
    """Takes the bytes of some pages in order, and digests them while they come."""

    def receive(self, socket: int, most: int, wait_us: int) -> int:
        """Read about `most` bytes, waiting no longer than so many microseconds for more of them. How many came; 0:
        none, -1: the stream has ended. OSError."""

    def take(self, data: bytes, /) -> int:
        """Return what was read already; how many bytes of it belong here."""

    @property
    def complete(self) -> bool:
        """All bytes have come."""

    def digests(self) -> list[bytes]:
        """Return what `KvMemory.digests` does, of the pages that are complete."""


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
        """Make what reads pages that come."""

    def sender(self, memory: KvMemory, blocks: Sequence[int], tiles: Sequence[int]) -> PageSender:
        """Make what writes pages that go."""


_MOST_READ_VIEWS = 512  # in one call; IOV_MAX is 1024
_MOST_READ_BYTES = 1 << 20  # in one call
_SCRATCH = 1 << 16
_WAIT_US = 50  # for more of the same payload, in one call: to go round the loop takes about as long


class PayloadReader:
    """Views of bytes that fill in order. `token` is what the machine called it; None for bytes nobody wants."""

    def __init__(self, views: Iterable[memoryview], token: int | None, mac: hashlib.blake2b | None) -> None:
        self.token = token
        self._mac = mac
        self._tag = bytearray(MAC_BYTES if mac is not None else 0)
        self._rest = (view for view in views if view.nbytes)
        self._window: deque[memoryview] = deque()  # the next views; the first one's filled part is cut off
        self._tag_follows = mac is not None  # and is not in the window
        self._refill()

    @property
    def complete(self) -> bool:
        """All bytes, and their MAC, have come."""
        return not self._window

    def take(self, parser: FrameParser) -> None:
        """Return what had come together with the header."""
        while self._window and (count := parser.take(self._window[0])):
            self._advance(count)

    def receive(self, sock: socket.socket) -> int:
        """One read into as many views as are at hand; how many bytes, 0 at the end of the stream. BlockingIOError when
        there is nothing."""
        views = [self._window[0]]
        if len(self._window) > 1:
            space = 0
            views.clear()
            # Not all: each view named costs time in every call, and the kernel never has so much at once.
            for view in self._window:
                views.append(view)
                space += view.nbytes
                if space >= _MOST_READ_BYTES:
                    break
        count = sock.recvmsg_into(views)[0] if len(views) > 1 else sock.recv_into(views[0])
        self._advance(count)
        return count

    def check(self) -> None:
        """FrameError when the bytes are not those that were sent."""
        if self._mac is not None:
            verify(self._mac, b"", self._tag)

    def _refill(self) -> None:
        self._window.extend(itertools.islice(self._rest, _MOST_READ_VIEWS - len(self._window)))
        if not self._window and self._tag_follows:
            self._tag_follows = False
            self._window.append(memoryview(self._tag))

    def _advance(self, count: int) -> None:
        window = self._window
        mac = self._mac if self._tag_follows else None
        while count:
            view = window[0]
            step = min(count, len(view))
            if mac is not None:
                mac.update(view[:step])
            if step == len(view):
                window.popleft()
            else:
                window[0] = view[step:]
            count -= step
        if len(window) < _MOST_READ_VIEWS // 2:
            self._refill()


class PagesReader:
    """The same for pages that the native core reads: it digests them on the way."""

    def __init__(self, pages: PageReceiver, token: int) -> None:
        self.token = token
        self._pages = pages

    @property
    def complete(self) -> bool:
        """All bytes have come."""
        return self._pages.complete

    def take(self, parser: FrameParser) -> None:
        """Return what had come together with the header."""
        parser.give(self._pages.take)

    def receive(self, sock: socket.socket) -> int:
        """Read what there is, within bounds, and what follows at once; how many bytes, 0 at the end of the stream.
        BlockingIOError when there is nothing."""
        count = self._pages.receive(sock.fileno(), _MOST_READ_BYTES, _WAIT_US)
        if not count:
            raise BlockingIOError
        return max(count, 0)

    def check(self) -> None:
        """Nothing came with them that tells: their digests do, which the machine compares."""

    def digests(self) -> list[bytes]:
        """Digests of all pages, once complete."""
        return self._pages.digests()


def into(views: Iterable[memoryview], token: int, mac: hashlib.blake2b | None) -> PayloadReader:
    """The bytes of these views, in order."""
    return PayloadReader((view.cast("B") for view in views), token, mac)


def discarding(nbytes: int, mac: hashlib.blake2b | None) -> PayloadReader:
    """Takes `nbytes` bytes and keeps nothing."""
    scratch = memoryview(bytearray(min(nbytes, _SCRATCH)))
    whole, rest = divmod(nbytes, _SCRATCH)
    return PayloadReader(itertools.chain(itertools.repeat(scratch, whole), [scratch[:rest]]), None, mac)


MOST_QUEUED = 8 << 20  # bytes of frames; blocks are not counted, they are only pointed to
MOST_PAYLOADS = 1024
_MOST_WRITTEN_VIEWS = 512  # in one call; IOV_MAX is 1024
_MOST_WRITTEN_BYTES = 4 << 20  # in one call


class _Payload:
    """Blocks on their way. Views are made as they are needed, and hashed when they are."""

    def __init__(self, views: Iterable[memoryview], token: int, mac: hashlib.blake2b | None) -> None:
        self.token = token
        self._views = iter(views)
        self._mac = mac

    def __iter__(self) -> Iterator[memoryview]:
        for view in self._views:
            raw = view.cast("B")
            if self._mac is not None:
                self._mac.update(raw)
            if raw.nbytes:
                yield raw
        if self._mac is not None:
            yield memoryview(self._mac.digest())


@dataclass(frozen=True)
class _Pages:
    """Blocks that the native core writes."""

    sender: PageSender
    token: int


class WriteQueue:
    """A queue of frames and payloads, and how far it is written. For one thread."""

    def __init__(self) -> None:
        self._queue: deque[bytes | _Payload | _Pages] = deque()
        # Views that come next; a number: the token of the payload that ended there.
        self._window: deque[memoryview | int] = deque()
        self._source: Iterator[memoryview] | None = None
        self._source_token = 0
        self._pages: _Pages | None = None  # on their way
        self._queued = 0  # bytes of frames in queue
        self._payloads = 0
        self.written = 0  # bytes, since the beginning

    def __bool__(self) -> bool:
        return bool(self._window or self._queue or self._source or self._pages)

    def push(self, frame: bytes) -> None:
        """Queue a frame. FrameError when the other side is too far behind."""
        if self._queued + len(frame) > MOST_QUEUED and self._queued:
            raise FrameError(
                "behind",
                f"{self._queued} bytes of frames wait for this peer, which does not take them; at most "
                f"{MOST_QUEUED} may",
            )
        self._queued += len(frame)
        self._queue.append(frame)

    def push_payload(self, views: Iterable[memoryview], token: int, mac: hashlib.blake2b | None) -> None:
        """Queue blocks; `flush` tells `token` when the last byte was given to the kernel."""
        if self._payloads >= MOST_PAYLOADS:
            raise FrameError("behind", f"{self._payloads} payloads wait for this peer, which does not take them")
        self._payloads += 1
        self._queue.append(_Payload(views, token, mac))

    def push_pages(self, sender: PageSender, token: int) -> None:
        """The same."""
        if self._payloads >= MOST_PAYLOADS:
            raise FrameError("behind", f"{self._payloads} payloads wait for this peer, which does not take them")
        self._payloads += 1
        self._queue.append(_Pages(sender, token))

    def flush(self, sock: socket.socket, ancillary: list[tuple[int, int, bytes]] | None = None) -> list[int]:
        """Write one batch, as much as the kernel takes without waiting; the tokens of the payloads that are through.
        OSError as of sendmsg."""
        queue = self._queue
        if self._pages is not None:
            return self._flush_pages(sock, self._pages)
        if (
            len(queue) == 1
            and not ancillary
            and not self._window
            and self._source is None
            and isinstance(queue[0], bytes)
        ):
            return self._flush_one(sock, queue[0])
        views = self._batch()
        if views:
            # The header goes with the first of them.
            more = socket.MSG_MORE if queue and isinstance(queue[0], _Pages) else 0
            count = (
                sock.send(views[0], more)
                if len(views) == 1 and not ancillary
                else sock.sendmsg(views, ancillary or [], more)
            )
            self.written += count
            return self._written(count)
        return self._written(0)

    def _flush_one(self, sock: socket.socket, frame: bytes) -> list[int]:
        """The usual case, one small frame, without the detours."""
        count = sock.send(frame)
        self.written += count
        self._queue.clear()
        self._queued = 0
        if count < len(frame):
            self._window.append(memoryview(frame)[count:])
        return []

    def _flush_pages(self, sock: socket.socket, pages: _Pages) -> list[int]:
        count = pages.sender.send(sock.fileno(), _MOST_WRITTEN_BYTES)
        self.written += count
        if not pages.sender.done:
            if not count:
                raise BlockingIOError
            return []
        self._pages = None
        self._payloads -= 1
        return [pages.token]

    def tokens(self) -> list[int]:
        """The payloads that are not through, when the connection has ended."""
        waiting = [item for item in self._window if isinstance(item, int)]
        if self._pages is not None:
            waiting.append(self._pages.token)
        if self._source is not None:
            waiting.append(self._source_token)
        return waiting + [item.token for item in self._queue if not isinstance(item, bytes)]

    def _batch(self) -> list[memoryview]:
        """Fill the window, and what of it goes in one call."""
        total = sum(item.nbytes for item in self._window if not isinstance(item, int))
        while len(self._window) < _MOST_WRITTEN_VIEWS and total < _MOST_WRITTEN_BYTES:
            view = self._next()
            if view is None:
                break
            self._window.append(view)
            total += 0 if isinstance(view, int) else view.nbytes
        return [item for item in self._window if not isinstance(item, int)]

    def _next(self) -> memoryview | int | None:
        """The next thing for the window; None when nothing waits."""
        if self._source is not None:
            view = next(self._source, None)
            if view is not None:
                return view
            self._source = None
            return self._source_token
        if not self._queue or self._pages is not None:
            return None
        item = self._queue[0]
        if isinstance(item, _Pages):
            return None  # alone, when all before it is written
        self._queue.popleft()
        if isinstance(item, bytes):
            self._queued -= len(item)
            return memoryview(item)
        self._source, self._source_token = iter(item), item.token
        return self._next()

    def _written(self, count: int) -> list[int]:
        done = []
        window = self._window
        while window:
            item = window[0]
            if isinstance(item, int):
                done.append(item)
                self._payloads -= 1
            elif item.nbytes <= count:
                count -= item.nbytes
            else:
                if count:
                    window[0] = item[count:]
                break
            window.popleft()
        if not window and self._source is None and self._queue and isinstance(self._queue[0], _Pages):
            self._pages = self._queue[0]
            self._queue.popleft()
        return done
