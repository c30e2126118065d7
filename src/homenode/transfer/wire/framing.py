"""Frames on a stream, and the greeting that gives them their keys: how a message's bytes are made, parsed and
authenticated, and how two processes prove who they are before any."""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal

import msgspec

from homenode.errors import PeerError
from homenode.transfer.wire.message import (
    MAX_FRAME,
    PROTOCOL,
    Buffer,
    Envelope,
    Gone,
    Greeted,
    Hello,
    Refused,
    decode,
    encode,
)
from homenode.units import format_count

HEADER_BYTES = 4
MAC_BYTES = 16
_HEADER = struct.Struct("<I")


class Direction(IntEnum):
    """The side whose frames a MAC is for."""

    FROM_CONNECTOR = 0
    FROM_ACCEPTOR = 1


class FrameError(PeerError):
    """The stream is damaged or hostile: nothing more can be taken from it. `code` is a word for statistics."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)
        self.code = code


def session_key(secret: str, connector_hello: bytes, acceptor_hello: bytes) -> bytes:
    """The MAC key of a connection. Each side's nonce lies in its Hello, so a key is never used twice and proves all
    that both Hellos say."""
    shared = hashlib.blake2b(secret.encode(), digest_size=32, person=b"homenode-secret").digest()
    said = hashlib.blake2b(digest_size=32, key=shared, person=b"homenode-session")
    for hello in (connector_hello, acceptor_hello):
        said.update(len(hello).to_bytes(8, "little"))
        said.update(hello)
    return said.digest()


class FrameMac:
    """The MACs of one direction of a connection. Every frame and payload has its own number, so none can be left out,
    repeated or moved."""

    def __init__(self, key: bytes, direction: Direction) -> None:
        self._key = key
        self._direction = direction
        self._count = 0

    def start(self) -> hashlib.blake2b:
        """A keyed hash for the next frame or payload, to be fed with its bytes."""
        salt = self._direction.to_bytes(1, "little") + self._count.to_bytes(8, "little")
        self._count += 1
        return hashlib.blake2b(key=self._key, salt=salt, digest_size=MAC_BYTES, person=b"homenode-frame")

    def tag(self, body: bytes | memoryview) -> bytes:
        """The MAC of the next frame."""
        mac = self.start()
        mac.update(body)
        return mac.digest()

    def check(self, body: bytes | memoryview, tag: bytes | memoryview) -> None:
        """FrameError unless `tag` is the MAC of the next frame."""
        verify(self.start(), body, tag)


def verify(mac: hashlib.blake2b, body: bytes | memoryview, tag: bytes | bytearray | memoryview) -> None:
    """Feed `body` and compare with `tag` in constant time. FrameError when they differ."""
    mac.update(body)
    if not hmac.compare_digest(mac.digest(), bytes(tag)):
        raise FrameError(
            "mac",
            "a frame's MAC is wrong: the secrets differ, or the stream was changed on its way. Set the same "
            "pd_secret on both sides.",
        )


def frame(body: bytes, mac: FrameMac | None = None, limit: int = MAX_FRAME) -> bytes:
    """A body as it goes onto the stream. FrameError when it is larger than the other side takes."""
    if len(body) > limit:
        raise FrameError("too-large", f"a frame of {len(body)} bytes; the other side takes at most {limit}")
    header = _HEADER.pack(len(body))
    return header + body if mac is None else header + body + mac.tag(body)


class FrameParser:
    """Cuts a stream into frames and raw bytes, wherever the stream was cut on its way."""

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.mac: FrameMac | None = None
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

    def feed(self, data: bytes | memoryview) -> None:
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

    def _is_one(self, data: bytes | memoryview) -> bool:
        """Tell whether this is a frame, all of it, and nothing waits."""
        if self._buffer or self.mac is not None or not HEADER_BYTES <= len(data) <= self.limit:
            return False
        return HEADER_BYTES + int(_HEADER.unpack_from(data)[0]) == len(data)

    def _frame_bytes(self) -> int:
        size: int = _HEADER.unpack_from(self._buffer)[0]
        if size > self.limit:
            raise FrameError("too-large", f"a frame announces {size} bytes; at most {self.limit} are taken")
        return HEADER_BYTES + size + (0 if self.mac is None else MAC_BYTES)


MAX_HELLO = 1 << 18  # bytes of a frame before the greeting is over
_SECRET_FIELD = "pd_secret"
_MOST_SHOWN = 80  # characters of a value in a refusal


class GreetingError(PeerError):
    """The greeting has failed. `refusal` is to be sent to the other side, if it was this side that refused."""

    def __init__(self, code: str, message: str, refusal: Refused | None = None) -> None:
        super().__init__(message, code=code)
        self.code = code
        self.refusal = refusal


@dataclass(frozen=True)
class Identity:
    """The facts that this process gives of itself. `fingerprint`: everything that must be equal on both sides, by
    name."""

    role: Literal["sender", "receiver"]
    mode: Literal["push", "pull-eager", "pull-delay"]
    channel: str
    fingerprint: dict[str, str] = field(repr=False)
    incarnation: bytes = field(default_factory=lambda: os.urandom(16))
    buffers: tuple[Buffer, ...] = ()  # what the other side reads or writes
    carrier: bytes = b""
    lane: bool = False  # who connects is given a lane
    protocol: tuple[int, int] = PROTOCOL

    def hello(self, secret: bool, lane: bool = False) -> Hello:
        """A Hello for one connection, which has a lane or not."""
        return Hello(
            protocol=self.protocol,
            incarnation=self.incarnation,
            role=self.role,
            mode=self.mode,
            channel=self.channel,
            fingerprint=self.fingerprint | {_SECRET_FIELD: "set" if secret else "none"},
            nonce=os.urandom(16),
            buffers=list(self.buffers),
            carrier=self.carrier,
            lane=lane,
        )


def objection(own: Hello, other: Hello) -> Refused | None:
    """Return why these two cannot work together; the first reason, with both sides' values, or None."""
    if max(own.protocol[0], other.protocol[0]) > min(own.protocol[1], other.protocol[1]):
        return _differs("protocol", _versions(own.protocol), _versions(other.protocol), "upgrade the older of the two")
    if other.incarnation == own.incarnation:
        return Refused("a process cannot hand KV over to itself; check the addresses", "self")
    if own.role == other.role:
        return Refused(f"both sides are a {own.role}; one must have pd_role sender, the other receiver", "role")
    if own.channel != other.channel:
        return _differs("channel", own.channel, other.channel, "set transfer_channel alike")
    if own.mode != other.mode:
        return _differs("mode", own.mode, other.mode, "set pd_pull_mode and pd_delay_pull alike")
    names = sorted(own.fingerprint.keys() | other.fingerprint.keys())
    for name in names:
        here, there = own.fingerprint.get(name, "(not said)"), other.fingerprint.get(name, "(not said)")
        if here != there:
            return _differs(name, here, there, "both sides must serve the same model with the same settings")
    ids = [buffer.id for buffer in other.buffers]
    if len(set(ids)) != len(ids):
        return Refused("a buffer is named twice", "buffer")
    return None


def _versions(pair: tuple[int, int]) -> str:
    return f"{pair[0]} to {pair[1]}"


def _differs(name: str, here: str, there: str, remedy: str) -> Refused:
    return Refused(
        f"{name} differs: {here[:_MOST_SHOWN]!r} at the one that refuses, {there[:_MOST_SHOWN]!r} at the other; "
        f"{remedy}",
        name[:64],
    )


class Greeting:
    """One side of a greeting. `other` is the other side's Hello once `done`; `macs` are (incoming, outgoing) once both
    Hellos were exchanged."""

    def __init__(self, own: Identity, secret: str | None, *, connects: bool) -> None:
        self.own = own.hello(secret is not None, own.lane and not connects)
        self.other: Hello | None = None
        self.done = False
        self.macs: tuple[FrameMac, FrameMac] | None = None
        self._secret = secret
        self._connects = connects
        self._said = encode(Envelope(b"", self.own))

    def opening(self) -> list[bytes]:
        """Return what the side that connects says first: frame bodies without MAC."""
        return [self._said] if self._connects else []

    def take(self, body: bytes) -> list[bytes]:
        """A frame's body; what to answer. Bodies after `macs` was set go out with a MAC, apart from an accepting side's
        Hello, the first of two. GreetingError when it has failed."""
        try:
            envelope = decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise GreetingError("garbage", f"what came is no greeting: {error}") from error
        match envelope.message:
            case Hello() as hello if self.other is None:
                return self._hello(hello, body)
            case Greeted() if self.macs is not None:
                self.done = True
                return []
            case Refused(reason, code):
                raise GreetingError(code, f"the other side refuses: {reason}")
            case Gone():
                raise GreetingError("gone", "the other side has been restarted")
            case message:
                raise GreetingError("garbage", f"a {type(message).__name__} came where a Hello was due")

    def _hello(self, hello: Hello, body: bytes) -> list[bytes]:
        refusal = objection(self.own, hello)
        if refusal is not None:
            raise GreetingError(refusal.code, f"refused: {refusal.reason}", refusal)
        self.other = hello
        answer = [] if self._connects else [self._said]
        if self._secret is None:
            self.done = True
            return answer
        hellos = (self._said, body) if self._connects else (body, self._said)
        key = session_key(self._secret, *hellos)
        ways = [FrameMac(key, Direction.FROM_ACCEPTOR), FrameMac(key, Direction.FROM_CONNECTOR)]
        self.macs = (ways[0], ways[1]) if self._connects else (ways[1], ways[0])
        return [*answer, encode(Envelope(hello.incarnation, Greeted()))]


@dataclass
class HandshakeLimits:
    """Limits of connecting: bounds connections that have not greeted, for each address and in all, and all that
    have."""

    ungreeted_per_address: int = 16
    ungreeted: int = 64
    connections: int = 1024
    _waiting: Counter[str] = field(default_factory=Counter)
    _greeted: int = 0

    def enter(self, address: str) -> str | None:
        """A connection came from there: None, or why it is closed at once."""
        waiting = self._waiting.total()
        if self._waiting[address] >= self.ungreeted_per_address:
            return f"{format_count(self._waiting[address], 'connection')} from {address} have not greeted yet"
        if waiting >= self.ungreeted:
            return f"{format_count(waiting, 'connection has', 'connections have')} not greeted yet"
        if waiting + self._greeted >= self.connections:
            return f"{format_count(waiting + self._greeted, 'connection is', 'connections are')} open"
        self._waiting[address] += 1
        return None

    def greet(self, address: str) -> None:
        """One of those has greeted."""
        self._leave_waiting(address)
        self._greeted += 1

    def leave(self, address: str, greeted: bool) -> None:
        """One has ended."""
        if greeted:
            self._greeted -= 1
        else:
            self._leave_waiting(address)

    def _leave_waiting(self, address: str) -> None:
        self._waiting[address] -= 1
        if self._waiting[address] <= 0:
            del self._waiting[address]
