"""The frames (`net.frames`) that a sandboxed process and its parent speak: JSON, over a socket pair.

JSON, and nothing that could name code, because what the child says must not be trusted more than the model's files.
Lone surrogates, which Python's strings and JSON can hold, go through unchanged.
"""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from homenode.net.frames import FrameError, FrameParser, frame

LARGEST_FRAME = 64 << 20  # bytes of one frame, both ways
_CHUNK = 256 << 10


class SandboxFrameError(Exception):
    """An error of a frame: what is to be sent is no JSON, or too large; or what came is no frame."""


class RefusedFileError(ValueError):
    """A file that a sandboxed process could not read, or that took too much there. The text says why."""


class FrameStream:
    """Frames over a connected socket, used by one thread at a time.

    Deadlines are moments of time.monotonic(); None waits for ever.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._parser = FrameParser(LARGEST_FRAME)

    def send(self, *bodies: bytes, deadline: float | None = None) -> None:
        """Send frames with these bodies, made by `encode`.

        TimeoutError at the deadline, OSError when nobody is there.
        """
        self._until(deadline)
        self._sock.sendall(b"".join(frame(body, limit=LARGEST_FRAME) for body in bodies))

    def receive(self, deadline: float | None = None) -> dict[str, Any] | None:
        """The next value; None when the other end has closed.

        SandboxFrameError for what is no frame, TimeoutError at the deadline. What came before the deadline is taken
        also by a caller who looks after it, because it was busy with something else.
        """
        body = self.receive_body(deadline)
        return None if body is None else decode(body)

    def receive_body(self, deadline: float | None = None) -> bytes | None:
        """The bytes of the next frame, whatever they are; the rest as of `receive`."""
        try:
            while (body := self._parser.next()) is None:
                piece = self._recv(deadline)
                if not piece:
                    return None
                self._parser.feed(piece)
        except FrameError as error:
            raise SandboxFrameError(error.message) from error
        return body

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()

    def _recv(self, deadline: float | None) -> bytes:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        self._sock.settimeout(left)  # 0: whatever is there
        try:
            return self._sock.recv(_CHUNK)
        except BlockingIOError:
            raise TimeoutError from None

    def _until(self, deadline: float | None) -> None:
        if deadline is None:
            self._sock.settimeout(None)
            return
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)


def encode(value: dict[str, Any]) -> bytes:
    """The body of a frame. SandboxFrameError for what JSON cannot say, and for what is larger than a frame."""
    try:
        body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    except (TypeError, ValueError, RecursionError) as error:
        raise SandboxFrameError(str(error)) from error
    if len(body) > LARGEST_FRAME:
        raise SandboxFrameError(f"it takes {len(body)} bytes; at most {LARGEST_FRAME} are taken")
    return body


def decode(body: bytes) -> dict[str, Any]:
    """The value in the body of a frame. SandboxFrameError for anything but a JSON object."""
    try:
        value = json.loads(body.decode("utf-8", "surrogatepass"))
    except (ValueError, RecursionError) as error:
        raise SandboxFrameError(f"it is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise SandboxFrameError("it is no JSON object")
    return value
