"""A peer that keeps to no rule: raw sockets, and frames of every kind of wrong."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from homenode.net.frames import FrameParser, frame
from homenode.transfer.wire.greeting import Identity
from homenode.transfer.wire.message import (
    Abandon,
    Cancel,
    Data,
    Done,
    DoneAck,
    Drained,
    Envelope,
    Gone,
    Hello,
    Message,
    Offer,
    OfferReply,
    PageRef,
    Read,
    Ready,
    Refused,
    Renew,
    Renewed,
    Stored,
    decode,
    encode,
    ready,
)
from tests.host.transfer.rig import FINGERPRINT
from tests.waiting import PATIENCE_S


def connect(address: str) -> socket.socket:
    """A blocking socket to a transfer address."""
    if address.startswith("unix:@"):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(PATIENCE_S)
        sock.connect("\0" + address[6:])
        return sock
    _, host, port = address.split(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def say_last(sock: socket.socket, data: bytes) -> None:
    """These bytes, and no more: nothing is wrong when the other side has had enough before they all went."""
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    except (BrokenPipeError, ConnectionResetError):
        pass
    except OSError as error:
        if error.errno != errno.ENOTCONN:  # what shutdown says of a connection that was reset
            raise


class RawPeer:
    """A connection in a test's hands."""

    def __init__(
        self, address: str, role: str, mode: str = "pull-eager", channel: str = "shm", **identity: Any
    ) -> None:
        self.sock = connect(address)
        self.identity = Identity(role, mode, channel, FINGERPRINT, **identity)  # type: ignore[arg-type]
        self.to = b""
        self._parser = FrameParser()

    def hello(self) -> Hello:
        return self.identity.hello(False)

    def greet(self, fds: list[int] | None = None) -> Message:
        """Say Hello; what is answered."""
        body = frame(encode(Envelope(b"", self.hello())))
        if fds:
            self.sock.sendmsg([body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))])
        else:
            self.sock.sendall(body)
        answer = self.receive()
        if isinstance(answer, Hello):
            self.to = answer.incarnation
        assert answer is not None
        return answer

    def send(self, message: Message, to: bytes | None = None) -> None:
        self.sock.sendall(frame(encode(Envelope(self.to if to is None else to, message))))

    def receive(self) -> Message | None:
        """The next message; None at the end of the stream."""
        while True:
            body = self._parser.next()
            if body is not None:
                return decode(body).message
            try:
                data, ancillary, _, _ = self.sock.recvmsg(1 << 16, 1024)
            except ConnectionResetError:
                return None
            for _, _, raw in ancillary:
                for (fd,) in struct.iter_unpack("i", raw):
                    os.close(fd)
            if not data:
                return None
            self._parser.feed(data)

    def ended(self) -> bool:
        """Wait for the other side to close."""
        while self.receive() is not None:
            pass
        return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


NUMBERS = (0, 1, 2, 31, 4095, 4096, 1 << 16, (1 << 31) - 1)
WILD_NUMBERS = (1 << 31, (1 << 63) - 1, (1 << 64) - 1, -1)


def hostile_messages(rng: random.Random, buffer: bytes) -> Iterator[Message]:
    """Well-formed structs with values nobody means well with; `buffer`: an id that is registered."""

    wild = False  # values that no decoder takes; else those that only the machine can refuse

    def number() -> int:
        if wild and rng.random() < 0.5:
            return rng.choice(WILD_NUMBERS)
        return rng.choice(NUMBERS) if rng.random() < 0.5 else rng.randrange(5)

    def text() -> str:
        if wild:
            return rng.choice(["", "x" * 5000, "\0", "é" * 200])
        return rng.choice(["t", "t1", "before", "x" * 128, "unix:@homenode-nobody", "tcp:127.0.0.1:1", "nowhere"])

    def pages() -> list[PageRef]:
        ids = (buffer, bytes(16), rng.randbytes(16), b"" if wild else buffer)
        return [PageRef(rng.choice(ids), number(), number()) for _ in range(rng.choice((0, 1, 2, 3)))]

    def packed(size: int) -> bytes:
        return rng.randbytes(rng.choice((0, 1, 2)) * size + rng.choice((0, 0, 0, 1)))

    def places() -> tuple[list[int], list[int]]:
        count = rng.choice((0, 1, 2, 3))
        return [rng.randrange(9) for _ in range(count)], [rng.randrange(2) for _ in range(count)]

    def digests() -> list[bytes]:
        return [rng.randbytes(7 if wild else rng.choice((8, 16, 16, 24))) for _ in range(rng.choice((0, 1, 2)))]

    def some() -> list[int]:
        return [number() for _ in range(rng.choice((0, 1, 3)))]

    def identities() -> list[bytes]:
        return [rng.randbytes(16)] * rng.choice((0, 1, 2, 9))

    makers: list[Callable[[], Any]] = [
        lambda: Offer(
            number(), text(), number(), rng.choice((*NUMBERS, 16, 32, 48)), identities(), text(), rng.random()
        ),
        lambda: Offer(rng.randrange(5), f"t{rng.randrange(9)}", 64, 32, [rng.randbytes(16)] * 2, text(), 1.0),
        lambda: OfferReply(
            number(), some(), pages(), rng.random() < 0.3, rng.random() < 0.3, number(), number(), text()
        ),
        lambda: Ready(
            number(),
            number(),
            number(),
            packed(16),
            rng.random() < 0.5,
            rng.choice((b"", buffer)),
            packed(4),
            packed(8),
        ),
        lambda: ready(
            rng.randrange(5), rng.randrange(3), digests(), rng.random() < 0.5, rng.choice((buffer, bytes(16))), places()
        ),
        lambda: Stored(number(), number(), rng.random() < 0.5, text()),
        lambda: Abandon(number(), text()),
        lambda: Cancel(number()),
        lambda: Drained(number()),
        lambda: Done(number(), rng.random() < 0.5),
        lambda: DoneAck(number(), rng.choice(("ok", "late", "unknown", "early", "x" if wild else "ok"))),  # type: ignore[arg-type]
        lambda: Renew(some()),
        lambda: Renewed(number(), some()),
        lambda: Read(number(), number(), number()),
        lambda: Data(number(), number(), number(), 0, digests(), rng.random() < 0.5, rng.random() < 0.5),
        lambda: Gone(rng.randbytes(16)),
        lambda: Refused(text(), text()),
    ]
    while True:
        wild = rng.random() < 0.02
        # Gone and Refused end a connection rightly, so they come seldom
        yield rng.choice(makers if rng.random() < 0.02 else makers[:-2])()


def hostile_frames(rng: random.Random, to: bytes, buffer: bytes) -> Iterator[bytes]:
    """Bytes for a stream after the greeting."""
    messages = hostile_messages(rng, buffer)
    bare = msgspec.msgpack.Encoder()
    while True:
        message = next(messages)
        kind = rng.random()
        try:
            body = bare.encode(Envelope(to, message))
        except OverflowError:
            continue
        if kind < 0.98:
            yield frame(body)
        elif kind < 0.985:
            yield frame(rng.randbytes(rng.choice((0, 1, 5, 100, 3000))))
        elif kind < 0.988:
            yield frame(body[: rng.randrange(len(body))])
        elif kind < 0.992:
            changed = bytearray(body)
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(len(changed))] = rng.randrange(256)
            yield frame(bytes(changed))
        elif kind < 0.994:
            yield frame(bare.encode(Envelope(rng.choice((b"", bytes(16), rng.randbytes(16))), message)))
        elif kind < 0.996:
            yield rng.choice((0xFFFFFFFF, 1 << 31, (16 << 20) + 1)).to_bytes(4, "little") + rng.randbytes(10)
        elif kind < 0.997:
            yield frame(b"\x91" * rng.choice((10, 2000, 100_000)))  # arrays in arrays
        elif kind < 0.998:
            yield frame(b"\x92\xc4\x10" + to + b"\xdf\xff\xff\xff\xff")  # a map that claims four milliards of entries
        else:
            data = Data(0, 0, 1, rng.choice((1, 100, 1 << 20, (1 << 40) - 1)), [], False)
            yield frame(encode(Envelope(to, data))) + rng.randbytes(rng.choice((0, 1, 50, 100)))
