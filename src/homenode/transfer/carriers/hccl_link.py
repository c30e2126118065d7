"""One connection between two processes for channel `hccl`: requests over TCP, each with its MAC, bytes by HCCL.

One side asks, the other serves. The one that asks names pieces of the other's memory; the bytes of a request, at most
`CHUNK`, go from memory of the host into that of the NPU, by HCCL to the other's, and from there into memory. HCCL knows
neither one-sided reads nor how long a message is: both sides begin when the request has been answered.
"""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from homenode.errors import PeerError
from homenode.transfer.carriers.hccl_library import ROOT_BYTES, HcclLibrary
from homenode.transfer.wire.framing import Direction, FrameMac, FrameParser, frame, session_key

CHUNK = 4 << 20  # bytes of a request
MOST_SPANS = 2048  # of a request
ANSWER_S = 20.0  # for an answer, and for the bytes of a request
JOIN_S = 60.0  # for HCCL to set up a communicator
_NONCE = 32
_MOST_FRAME = 64 << 10
_READ = 1 << 16

Span = tuple[int, int]  # address, bytes


class HcclOpening(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Make a communicator: `root` is HCCL's word for it, opaque."""

    root: bytes


class HcclMove(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """These pieces of the memory of whoever serves are to be read, or written (`writes`)."""

    writes: bool
    spans: tuple[Span, ...]


class HcclAnswer(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True):
    """Go on; with a `refusal`: no."""

    refusal: str = ""


HcclRequest = HcclOpening | HcclMove


class ControlStream:
    """Messages over a connected socket, which it owns. Both sides prove that they know the key."""

    def __init__(self, sock: socket.socket, key: str, direction: Direction) -> None:
        """PeerError when the other side does not answer."""
        self._sock, self._parser = sock, FrameParser(_MOST_FRAME)
        own = os.urandom(_NONCE)
        sock.settimeout(ANSWER_S)
        try:
            sock.sendall(own)
            theirs = self._exactly(_NONCE)
        except OSError as error:
            raise PeerError(f"HCCL: the other side does not answer: {error}", code="lost") from error
        connector, acceptor = (own, theirs) if direction is Direction.FROM_CONNECTOR else (theirs, own)
        session = session_key(key, connector, acceptor)
        other = Direction.FROM_ACCEPTOR if direction is Direction.FROM_CONNECTOR else Direction.FROM_CONNECTOR
        self._mac, self._parser.mac = FrameMac(session, direction), FrameMac(session, other)

    def send(self, message: msgspec.Struct) -> None:
        """PeerError when it does not go."""
        try:
            self._sock.settimeout(ANSWER_S)
            self._sock.sendall(frame(msgspec.msgpack.encode(message), self._mac, _MOST_FRAME))
        except OSError as error:
            raise PeerError(f"HCCL: the connection is lost: {error}", code="lost") from error

    def receive(self, kind: Any, seconds: float) -> Any:
        """The next message; None when none has begun by then. PeerError for what is none, and at the end."""
        until = time.monotonic() + seconds
        try:
            while (body := self._parser.next()) is None:
                left = until - time.monotonic()
                if left <= 0:
                    if self._parser.held:
                        raise PeerError("HCCL: half a message came", code="silent")
                    return None
                self._sock.settimeout(left)
                try:
                    data = self._sock.recv(_READ)
                except TimeoutError:
                    continue
                if not data:
                    raise PeerError("HCCL: the other side has ended the connection", code="lost")
                self._parser.feed(data)
            return msgspec.msgpack.decode(body, type=kind)
        except (OSError, msgspec.MsgspecError) as error:
            raise PeerError(f"HCCL: {error}", code="lost") from error

    def answered(self, seconds: float) -> None:
        """Wait for an `HcclAnswer`. PeerError for a refusal, and when none comes."""
        answer = self.receive(HcclAnswer, seconds)
        if answer is None:
            raise PeerError("HCCL: the other side does not answer", code="silent")
        if answer.refusal:
            raise PeerError(f"HCCL: the other side refuses: {answer.refusal[:200]}", code="buffer")

    def _exactly(self, nbytes: int) -> bytes:
        data = b""
        while len(data) < nbytes:
            if not (more := self._sock.recv(nbytes - len(data))):
                raise ConnectionResetError("it has ended the connection")
            data += more
        return data

    def close(self) -> None:
        """End the connection."""
        self._sock.close()


class HcclLink:
    """The ends of a communicator of two in this process, with memory of the NPU and of the host for one request. For
    one thread.
    """

    def __init__(self, library: HcclLibrary, root: bytes, rank: int) -> None:
        """`rank`: 0 asks, 1 serves. Waits for the other. PeerError, HostError."""
        library.enter()
        self._library, self._other = library, 1 - rank
        self._host = ctypes.create_string_buffer(CHUNK)
        self._address = ctypes.addressof(self._host)
        self._device = library.allocate(CHUNK)
        try:
            self._stream = library.create_stream()
            try:
                self._communicator = library.join(root, rank)
            except PeerError:
                library.destroy_stream(self._stream)
                raise
        except BaseException:
            library.free(self._device)
            raise

    def gather(self, spans: Sequence[Span]) -> int:
        """Take these pieces of this process's memory to the NPU; how many bytes."""
        nbytes = 0
        for address, size in spans:
            ctypes.memmove(self._address + nbytes, address, size)
            nbytes += size
        self._library.upload(self._device, self._address, nbytes)
        return nbytes

    def scatter(self, spans: Sequence[Span], nbytes: int) -> None:
        """Put what the NPU has into these pieces of this process's memory."""
        self._library.download(self._address, self._device, nbytes)
        begin = 0
        for address, size in spans:
            ctypes.memmove(address, self._address + begin, size)
            begin += size

    def send(self, nbytes: int) -> None:
        """To the other side, and wait. PeerError when it does not take it in time."""
        self._library.send(self._communicator, self._device, nbytes, self._other, self._stream)
        self._library.wait(self._stream, ANSWER_S)

    def receive(self, nbytes: int) -> None:
        """From the other side, and wait. PeerError when it does not come in time."""
        self._library.receive(self._communicator, self._device, nbytes, self._other, self._stream)
        self._library.wait(self._stream, ANSWER_S)

    def close(self) -> None:
        """Give everything back."""
        self._library.leave(self._communicator)
        self._library.destroy_stream(self._stream)
        self._library.free(self._device)


def valid_root(root: bytes) -> bool:
    """Whether it has the size of HCCL's."""
    return len(root) == ROOT_BYTES


def size_of(spans: Sequence[Span]) -> int:
    """Bytes of all pieces."""
    return sum(size for _, size in spans)


def chunks(ours: Sequence[Span], theirs: Sequence[Span]) -> Iterator[tuple[list[Span], list[Span]]]:
    """Pairs of equal pieces, cut into requests of at most CHUNK bytes and MOST_SPANS pieces. Pure."""
    here: list[Span] = []
    there: list[Span] = []
    held = 0
    for (mine, nbytes), (yours, _) in zip(ours, theirs, strict=True):
        done = 0
        while done < nbytes:
            step = min(nbytes - done, CHUNK - held)
            here.append((mine + done, step))
            there.append((yours + done, step))
            done, held = done + step, held + step
            if held == CHUNK or len(here) == MOST_SPANS:
                yield here, there
                here, there, held = [], [], 0
    if here:
        yield here, there
