"""Frames on a stream: a 4-byte little-endian length, that many bytes, and a MAC where there is a key. A length is
checked before anything is kept for its frame. Nothing here does I/O, so that it serves threads, pollers and asyncio
alike, and nothing but the standard library is imported, as sandboxes speak in frames, too.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Protocol

from homenode.errors import PeerError

HEADER_BYTES = 4
MAC_BYTES = 16
LARGEST = 16 << 20  # bytes of a body, where its reader does not say another bound
_HEADER = struct.Struct("<I")


class FrameError(PeerError):
    """The stream is damaged or hostile: nothing more can be taken from it. `code` is a word for statistics."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)
        self.code = code


class BodyMac(Protocol):
    """MACs of the frames of one direction, one after another (`net.frame_mac`)."""

    def start(self) -> hashlib.blake2b:
        """A keyed hash for the next frame or payload, to be fed with its bytes."""

    def tag(self, body: bytes | memoryview) -> bytes:
        """The MAC of the next frame."""

    def check(self, body: bytes | memoryview, tag: bytes | memoryview) -> None:
        """FrameError unless `tag` is the MAC of the next frame."""


def frame(body: bytes, mac: BodyMac | None = None, limit: int = LARGEST) -> bytes:
    """A body as it goes onto the stream. FrameError when it is larger than the other side takes."""
    if len(body) > limit:
        raise FrameError("too-large", f"a frame of {len(body)} bytes; the other side takes at most {limit}")
    header = _HEADER.pack(len(body))
    return header + body if mac is None else header + body + mac.tag(body)


class FrameParser:
    """Cuts a stream into frames and raw bytes, wherever the stream was cut on its way."""

    def __init__(self, limit: int = LARGEST) -> None:
        self.limit = limit
        self.mac: BodyMac | None = None
        self._buffer = bytearray()
        self._alone = b""  # a frame that came by itself, as most do: it is cut from nothing

    @property
    def held(self) -> int:
        """Bytes that have come and were not taken."""
        return len(self._buffer) + len(self._alone)

    @property
    def missing(self) -> int:
        """Bytes still to come for the frame that has begun; 0 when none has, or when its length is not known yet."""
        if len(self._buffer) < HEADER_BYTES:
            return 0
        return max(0, self._frame_bytes() - len(self._buffer))

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take what came."""
        if self._alone:
            self._buffer += self._alone
            self._alone = b""
        elif self._is_one(data):
            self._alone = bytes(data)
            return
        self._buffer += data

    def next(self) -> bytes | None:
        """The body of the next frame if all of it is there. FrameError for one that is too large, or whose MAC is
        wrong."""
        if self._alone:
            body, self._alone = self._alone[HEADER_BYTES:], b""
            return body
        held = len(self._buffer)
        if held < HEADER_BYTES:
            return None
        total = self._frame_bytes()
        if held < total:
            return None
        with memoryview(self._buffer) as came:
            if self.mac is None:
                body = bytes(came[HEADER_BYTES:total])
            else:
                body = bytes(came[HEADER_BYTES : total - MAC_BYTES])
                self.mac.check(body, bytes(came[total - MAC_BYTES : total]))
        del self._buffer[:total]
        return body

    def take(self, target: memoryview) -> int:
        """Move raw bytes from the beginning of what came into `target` (bytes); how many."""
        if self._alone:
            self.feed(b"")
        count = min(len(target), len(self._buffer))
        if count:
            with memoryview(self._buffer) as came:
                target[:count] = came[:count]
            del self._buffer[:count]
        return count

    def give(self, taker: Callable[[bytes], int]) -> None:
        """Offer raw bytes, from the beginning of what came; `taker` says how many it has taken."""
        if self._alone:
            self.feed(b"")
        if self._buffer:
            del self._buffer[: taker(bytes(self._buffer))]

    def _is_one(self, data: bytes | bytearray | memoryview) -> bool:
        """Tell whether this is a frame, all of it, and nothing waits."""
        if self._buffer or self.mac is not None or not HEADER_BYTES <= len(data) <= self.limit:
            return False
        return HEADER_BYTES + int(_HEADER.unpack_from(data)[0]) == len(data)

    def _frame_bytes(self) -> int:
        size: int = _HEADER.unpack_from(self._buffer)[0]
        if size > self.limit:
            raise FrameError("too-large", f"a frame announces {size} bytes; at most {self.limit} are taken")
        return HEADER_BYTES + size + (0 if self.mac is None else MAC_BYTES)
