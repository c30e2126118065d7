"""The greeting by which two ends of a connection between an engine and its workers make sure of each other: a secret of
this start, and a challenge both ways.

    -> MAGIC, nonce                              the caller's
    <- nonce, HMAC(secret, "called", nonces)     whoever was called knows the secret
    -> HMAC(secret, "caller", nonces, topic), length of the topic, topic

HMAC-SHA256 (RFC 2104), tags compared in constant time. Nothing else is read from a stranger. What follows is not
encrypted: see docs/ray.md.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import logging
import secrets
import socket
import time
from collections.abc import Callable

import msgspec

from homenode.engine.wire import decode_body
from homenode.errors import PeerError

_log = logging.getLogger(__name__)
MAGIC = b"homenode-worker-1"
_ENDED = (errno.EBADF, errno.EINVAL)  # what a socket says that was closed, or shut down, while somebody waited at it
_AGAIN_S = 0.25  # before a system without descriptors is asked again
_NONCE, _TAG, _MOST_TOPIC = 32, 32, 1024


class Key(msgspec.Struct, frozen=True):
    """Rows of a generation that go to a stage, as its reader number `reader` gets them."""

    generation: int
    stage: int
    reader: int


class IAm(msgspec.Struct, frozen=True, tag=True):
    """Topic: the connection between the engine and this worker, in its `life`-th process."""

    worker: int
    life: int


class RowsOffer(msgspec.Struct, frozen=True, tag=True):
    """Topic: these rows are awaited at this address."""

    key: Key
    address: str


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Topic: where are these rows awaited? Answered with the address as one frame, or with the end of the stream."""

    key: Key


class Rows(msgspec.Struct, frozen=True, tag=True):
    """Topic: these rows come on this connection."""

    key: Key


class Group(msgspec.Struct, frozen=True):
    """The ranks of a stage in a generation."""

    generation: int
    stage: int


class Seated(msgspec.Struct, frozen=True, tag=True):
    """Topic: this rank of `ranks` is there, and those of other hosts reach its memory at `address`. Answered with the
    addresses of all ranks in their order as one frame, once all are there, or with the end of the stream.
    """

    group: Group
    rank: int
    ranks: int
    address: str


class MemoryRequest(msgspec.Struct, frozen=True, tag=True):
    """Topic: a rank of the same host asks for the group's memory. Answered with its descriptor and, as one frame, the
    address as in `Seated`.
    """

    group: Group
    rank: int


class Values(msgspec.Struct, frozen=True, tag=True):
    """Topic: what this rank of another host writes comes on this connection."""

    group: Group
    rank: int


Topic = IAm | RowsOffer | Ask | Rows | Seated | MemoryRequest | Values


def call(address: str, secret: bytes, topic: Topic, timeout_s: float) -> socket.socket:
    """Connect to HOST:PORT, make sure of who is there, and say what about. PeerError when that fails, or takes longer
    than `timeout_s`.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout_s
    try:
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
    except (OSError, ValueError) as error:
        raise PeerError(f"no connection to {address}: {error}") from error
    try:
        introduce(sock, address, secret, topic, deadline)
    except PeerError:
        sock.close()
        raise
    return sock


def introduce(sock: socket.socket, address: str, secret: bytes, topic: Topic, deadline: float) -> None:
    """The caller's part of the greeting, to whoever answers at `address`. PeerError as for `call`; the socket stays the
    caller's to close.
    """
    try:
        _send_at_once(sock)
        mine = secrets.token_bytes(_NONCE)
        sock.sendall(MAGIC + mine)
        answer = read_exactly(sock, _NONCE + _TAG, deadline)
        nonces = mine + answer[:_NONCE]
        if not hmac.compare_digest(answer[_NONCE:], _tag(secret, b"called", nonces)):
            raise PeerError(f"whoever answers at {address} does not know the secret of this start")
        body = msgspec.msgpack.encode(topic)
        sock.sendall(_tag(secret, b"caller", nonces + body) + len(body).to_bytes(2, "little") + body)
        sock.settimeout(None)
    except OSError as error:
        raise PeerError(f"the connection to {address} failed: {error}") from error


def accept_next(server: socket.socket, over: Callable[[], bool]) -> socket.socket | None:
    """The next connection to a listening socket; None once that is closed, or `over`.

    A system that has no descriptor or memory for one is asked again a few times a second: were the listening thread to
    end by that, no worker could join any more.
    """
    while not over():
        try:
            return server.accept()[0]
        except OSError as error:
            if error.errno in _ENDED or over():
                return None
            _log.warning("no connection can be accepted: %s; trying again in %g s", error.strerror, _AGAIN_S)
            time.sleep(_AGAIN_S)
    return None


def answer(sock: socket.socket, secret: bytes, timeout_s: float) -> Topic:
    """Make sure of who has called, and learn what about. PeerError for a stranger; the socket stays the caller's to
    close.
    """
    deadline = time.monotonic() + timeout_s
    try:
        _send_at_once(sock)
        hello = read_exactly(sock, len(MAGIC) + _NONCE, deadline)
        if hello[: len(MAGIC)] != MAGIC:
            raise PeerError("a stranger called: these are no words of a worker")
        mine = secrets.token_bytes(_NONCE)
        nonces = hello[len(MAGIC) :] + mine
        sock.sendall(mine + _tag(secret, b"called", nonces))
        head = read_exactly(sock, _TAG + 2, deadline)
        size = int.from_bytes(head[_TAG:], "little")
        if size > _MOST_TOPIC:
            raise PeerError(f"a topic of {size} bytes; at most {_MOST_TOPIC} are allowed")
        body = read_exactly(sock, size, deadline)
        if not hmac.compare_digest(head[:_TAG], _tag(secret, b"caller", nonces + body)):
            raise PeerError("a stranger called, who does not know the secret of this start")
        sock.settimeout(None)
    except OSError as error:
        raise PeerError(f"the connection failed: {error}") from error
    topic: Topic = decode_body(body, Topic)
    return topic


def _send_at_once(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def read_exactly(sock: socket.socket, size: int, deadline: float) -> bytes:
    """So many bytes. PeerError when the stream ends before, or `deadline` (time.monotonic) passes."""
    data = bytearray(size)
    read_into(sock, memoryview(data), deadline)
    return bytes(data)


def read_into(sock: socket.socket, view: memoryview, deadline: float) -> None:
    """Fill `view`. PeerError as in `read_exactly`."""
    while len(view):
        left = deadline - time.monotonic()
        if left <= 0:
            raise PeerError("the other end did not say all it had to in time")
        try:
            sock.settimeout(left)
            count = sock.recv_into(view)
        except TimeoutError:
            continue
        except OSError as error:
            raise PeerError(f"the connection failed: {error}") from error
        if not count:
            raise PeerError("the other end closed the connection")
        view = view[count:]


def name_of(secret: bytes, what: str) -> str:
    """A name that only those who know the secret can tell before it is used."""
    return _tag(secret, b"name", what.encode()).hex()[:32]


def _tag(secret: bytes, side: bytes, data: bytes) -> bytes:
    return hmac.new(secret, side + data, hashlib.sha256).digest()
