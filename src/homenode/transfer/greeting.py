"""The first words on a connection: Hello both ways, compared field by field, and with a secret a proof of it both ways.
No I/O here.

Without a secret a connection is greeted when both Hellos were good. With one, MACs begin after the Hellos and each side
sends Greeted under them: the key comes of the secret and of both Hellos as they went over the wire, so that frame
proves the secret and that nobody changed a Hello.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from homenode.errors import PeerError
from homenode.transfer.wire.framing import Direction, FrameMac, session_key
from homenode.transfer.wire.message import PROTOCOL, Buffer, Envelope, Gone, Greeted, Hello, Refused, decode, encode
from homenode.units import format_count

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
    """What this process says of itself. `fingerprint`: everything that must be equal on both sides, by name."""

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
    """Why these two cannot work together; the first reason, with both sides' values, or None."""
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
        """What the side that connects says first: frame bodies without MAC."""
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
    """Who may connect: bounds connections that have not greeted, for each address and in all, and all that have."""

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
