"""Raw bytes after a Data frame: straight into memory views, or thrown away. With a secret their MAC comes after
them."""

from __future__ import annotations

import hashlib
import itertools
import socket
from collections import deque
from collections.abc import Iterable

from homenode.transfer.wire.framing import MAC_BYTES, FrameParser, verify
from homenode.transfer.wire.page_stream import PageReceiver

_MOST_VIEWS = 512  # in one call; IOV_MAX is 1024
_MOST_BYTES = 1 << 20  # in one call
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
        """What had come together with the header."""
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
                if space >= _MOST_BYTES:
                    break
        count = sock.recvmsg_into(views)[0] if len(views) > 1 else sock.recv_into(views[0])
        self._advance(count)
        return count

    def check(self) -> None:
        """FrameError when the bytes are not those that were sent."""
        if self._mac is not None:
            verify(self._mac, b"", self._tag)

    def _refill(self) -> None:
        self._window.extend(itertools.islice(self._rest, _MOST_VIEWS - len(self._window)))
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
        if len(window) < _MOST_VIEWS // 2:
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
        """What had come together with the header."""
        parser.give(self._pages.take)

    def receive(self, sock: socket.socket) -> int:
        """What there is, within bounds, and what follows at once; how many bytes, 0 at the end of the stream.
        BlockingIOError when there is nothing."""
        count = self._pages.receive(sock.fileno(), _MOST_BYTES, _WAIT_US)
        if not count:
            raise BlockingIOError
        return max(count, 0)

    def check(self) -> None:
        """Nothing came with them that tells: their digests do, which the machine compares."""

    def digests(self) -> list[bytes]:
        """Of all pages, once complete."""
        return self._pages.digests()


def into(views: Iterable[memoryview], token: int, mac: hashlib.blake2b | None) -> PayloadReader:
    """The bytes of these views, in order."""
    return PayloadReader((view.cast("B") for view in views), token, mac)


def discarding(nbytes: int, mac: hashlib.blake2b | None) -> PayloadReader:
    """Takes `nbytes` bytes and keeps nothing."""
    scratch = memoryview(bytearray(min(nbytes, _SCRATCH)))
    whole, rest = divmod(nbytes, _SCRATCH)
    return PayloadReader(itertools.chain(itertools.repeat(scratch, whole), [scratch[:rest]]), None, mac)
