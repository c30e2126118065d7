"""The greeting of two engines: what each says of itself, why two cannot work together, and the keys of a connection
whose ends know a secret."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from homenode.errors import PeerError
from homenode.net.frame_mac import Direction, FrameMac, session_key
from homenode.transfer.wire.message import (
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
