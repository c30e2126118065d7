"""What waits to be written to a connection: frames and blocks of KV, gathered into few system calls; bounded."""

from __future__ import annotations

import hashlib
import socket
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from homenode.transfer.wire.framing import FrameError
from homenode.transfer.wire.page_stream import PageSender

MOST_QUEUED = 8 << 20  # bytes of frames; blocks are not counted, they are only pointed to
MOST_PAYLOADS = 1024
_MOST_VIEWS = 512  # in one call; IOV_MAX is 1024
_MOST_BYTES = 4 << 20  # in one call


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
        count = pages.sender.send(sock.fileno(), _MOST_BYTES)
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
        while len(self._window) < _MOST_VIEWS and total < _MOST_BYTES:
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
