"""Messages as frames (`net.frames`) of msgpack: encoded, decoded, and sent and received over a blocking socket, with
descriptors beside them where both ends are on one host."""

from __future__ import annotations

import socket
import threading
from collections import deque
from typing import Any, TypeVar

import msgspec

from homenode.errors import CapacityError, PeerError
from homenode.net.frames import FrameParser, frame

T = TypeVar("T")
MAX_FRAME = 256 << 20  # bytes of a message
_CHUNK = 256 * 1024


def encode_frame(message: Any, limit: int = MAX_FRAME) -> bytes:
    """A message (or config dataclass) as one frame. CapacityError when it is larger than `limit` bytes."""
    body = msgspec.msgpack.encode(message, enc_hook=_plain)
    if len(body) > limit:
        raise CapacityError(
            f"a {type(message).__name__} message takes {len(body)} bytes; a frame holds at most {limit}. Send less "
            "at once."
        )
    return frame(body, limit=limit)


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
        self._parser = FrameParser(limit)

    @property
    def held(self) -> int:
        """Bytes of an incomplete frame that wait for the rest."""
        return self._parser.held

    def feed(self, data: bytes | bytearray | memoryview) -> list[bytes]:
        """The bodies of the frames that became complete. PeerError when a frame announces more than the limit."""
        self._parser.feed(data)
        frames = []
        while (body := self._parser.next()) is not None:
            frames.append(body)
        return frames


class StreamClosedError(PeerError):
    """Nobody is at the other end of a stream any more: what was to be sent is of use to nobody."""


class FrameSocket:
    """Frames over a connected blocking socket, and descriptors that come beside them. One thread receives; any may
    send.
    """

    def __init__(self, sock: socket.socket, limit: int = MAX_FRAME, descriptors: int = 0) -> None:
        """`descriptors`: so many may come with one frame; none are taken from who is not of this service."""
        self._sock, self._limit, self._most_descriptors = sock, limit, descriptors
        self._decoder = FrameDecoder(limit)
        self._frames: deque[bytes] = deque()
        self._descriptors: deque[int] = deque()
        self._sending = threading.Lock()

    def send(self, message: Any) -> None:
        """Send one message; blocks while the other end is behind. StreamClosedError when it is gone, CapacityError when
        the message is too large for a frame.
        """
        data = encode_frame(message, self._limit)
        try:
            with self._sending:
                self._sock.sendall(data)
        except OSError as error:
            raise StreamClosedError(f"the other end of the connection is gone: {error}") from error

    def receive(self) -> bytes | None:
        """The body of the next frame; None at the end of the stream. PeerError when the stream ends inside a frame or
        is damaged.
        """
        while not self._frames:
            try:
                data = self._read()
            except ConnectionResetError:  # the other end died with something unread
                return None
            except OSError as error:
                raise PeerError(f"the connection failed: {error}") from error
            if not data:
                if self._decoder.held:
                    raise PeerError(f"the stream ended inside a frame, {self._decoder.held} bytes after its beginning")
                return None
            self._frames.extend(self._decoder.feed(data))
        return self._frames.popleft()

    def descriptors(self, count: int) -> list[int]:
        """The next `count` descriptors that came, now the caller's. PeerError when fewer came."""
        if len(self._descriptors) < count:
            raise PeerError(
                f"a frame speaks of {count} channels, and {len(self._descriptors)} descriptors came with it"
            )
        return [self._descriptors.popleft() for _ in range(count)]

    def _read(self) -> bytes:
        if not self._most_descriptors:
            return self._sock.recv(_CHUNK)
        data, descriptors, flags, _ = socket.recv_fds(self._sock, _CHUNK, self._most_descriptors)
        self._descriptors.extend(descriptors)
        if flags & socket.MSG_CTRUNC:
            raise PeerError(
                f"more than {self._most_descriptors} descriptors came at once, or there is no room for them in this "
                "process"
            )
        return data


def _plain(value: Any) -> Any:
    """NumPy scalars and arrays as plain values; whatever else has no place in msgpack as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
