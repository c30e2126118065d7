"""Frames on a stream: a 4-byte little-endian length and that many bytes of msgpack.

The decoder does no I/O, so that it serves threads and asyncio alike. A length is checked before anything is kept for
its frame.
"""

from __future__ import annotations

import socket
from typing import Any, TypeVar

import msgspec

from homenode.engine.messages import MAX_FRAME
from homenode.errors import CapacityError, PeerError

T = TypeVar("T")
_HEADER = 4
_CHUNK = 256 * 1024


def encode_frame(message: Any, limit: int = MAX_FRAME) -> bytes:
    """A message (or config dataclass) as one frame. CapacityError when it is larger than `limit` bytes."""
    body = msgspec.msgpack.encode(message, enc_hook=_plain)
    if len(body) > limit:
        raise CapacityError(
            f"a {type(message).__name__} message takes {len(body)} bytes; a frame holds at most {limit}. Send less "
            "at once."
        )
    return len(body).to_bytes(_HEADER, "little") + body


def decode_body(body: bytes, kind: Any) -> Any:
    """The message in the body of a frame, checked against `kind` (a struct type or a union of them). PeerError for
    anything else.
    """
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise PeerError(f"a frame of {len(body)} bytes is no message this end understands: {error}") from error


class FrameDecoder:
    """Cuts a stream of bytes into frames, wherever the stream was cut on its way."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def held(self) -> int:
        """Bytes of an incomplete frame that wait for the rest."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """The bodies of the frames that became complete. PeerError when a frame announces more than the limit."""
        self._buffer += data
        frames, start = [], 0
        while len(self._buffer) - start >= _HEADER:
            size = int.from_bytes(self._buffer[start : start + _HEADER], "little")
            if size > self._limit:
                raise PeerError(
                    f"a frame announces {size} bytes; at most {self._limit} are allowed. The stream is damaged."
                )
            end = start + _HEADER + size
            if len(self._buffer) < end:
                break
            frames.append(bytes(self._buffer[start + _HEADER : end]))
            start = end
        del self._buffer[:start]
        return frames


class StreamClosedError(PeerError):
    """Nobody is at the other end of a stream any more: what was to be sent is of use to nobody."""


class FrameSocket:
    """Frames over a connected blocking socket. One thread may read while another writes."""

    def __init__(self, sock: socket.socket, limit: int = MAX_FRAME) -> None:
        self._sock = sock
        self._limit = limit
        self._decoder = FrameDecoder(limit)
        self._frames: list[bytes] = []

    def send(self, message: Any) -> None:
        """Send one message; blocks while the other end is behind. StreamClosedError when it is gone."""
        frame = encode_frame(message, self._limit)
        try:
            self._sock.sendall(frame)
        except OSError as error:
            raise StreamClosedError(f"the other end of the connection is gone: {error}") from error

    def receive(self) -> bytes | None:
        """The body of the next frame; None at the end of the stream. PeerError when the stream ends inside a frame or
        is damaged.
        """
        while not self._frames:
            try:
                data = self._sock.recv(_CHUNK)
            except ConnectionResetError:  # the other end died with something unread
                return None
            except OSError as error:
                raise PeerError(f"the connection failed: {error}") from error
            if not data:
                if self._decoder.held:
                    raise PeerError(f"the stream ended inside a frame, {self._decoder.held} bytes after its beginning")
                return None
            self._frames = self._decoder.feed(data)[::-1]
        return self._frames.pop()


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays as plain values; whatever else has no place in msgpack as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
