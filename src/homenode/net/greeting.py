"""The greeting by which two ends of a connection make sure of each other: a secret that both know, a challenge both
ways, and what the caller comes for.

    -> MAGIC, nonce                                        the caller's
    <- nonce, HMAC(secret, "called", nonces)               whoever was called knows the secret
    -> HMAC(secret, "caller", nonces, topic), length of the topic, topic

MAGIC ends in a version. Whoever is called by another one answers with its own MAGIC in place of that, so that both ends
can say which two they are.

HMAC-SHA256 (RFC 2104), tags compared in constant time; the nonces are fresh, so nothing that was recorded counts again.
Nothing else is read from a stranger. Where `Credentials` have keys all of it is said inside of TLS
(`net.secure_stream`); without, what follows is plain text, which `net.settings` allows on this host only, or where the
operator says so.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path

from homenode.errors import PeerError
from homenode.net.deadlines import read_exactly, write_all
from homenode.net.keys import KeyFolder
from homenode.net.secure_stream import secure_stream
from homenode.net.settings import REMEDY, is_loopback
from homenode.net.tls import is_tls

VERSION = "2"
_WORD = b"homenode-worker-"
MAGIC = _WORD + VERSION.encode()
PROTOCOL = f"homenode-worker/{VERSION}"
_NONCE, _TAG, _MOST_TOPIC = 32, 32, 1024


@dataclass(frozen=True)
class Credentials:
    """`secret`: of this start of an engine and its workers. `keys`: of this host, for TLS. `plain_text`: without keys,
    other hosts are spoken with in clear all the same.
    """

    secret: bytes = field(repr=False)
    keys: KeyFolder | None = None
    plain_text: bool = False

    def line(self) -> str:
        """The same as a line of text, for a process that is to have them."""
        folder = None if self.keys is None else str(self.keys.path)
        return json.dumps({"secret": self.secret.hex(), "peer_keys": folder, "plain_text": self.plain_text})

    @classmethod
    def of_line(cls, line: str, folder: str | None = None) -> Credentials:
        """Those that `line` gave; `folder`: the one of this host's keys, where it is not the one told. PeerError for
        another text.
        """
        try:
            said = json.loads(line)
            told = folder or said["peer_keys"]
            return cls(bytes.fromhex(said["secret"]), KeyFolder(Path(told)) if told else None, bool(said["plain_text"]))
        except (ValueError, KeyError, TypeError) as error:
            raise PeerError("what was given to a worker are no credentials") from error


def call(address: str, credentials: Credentials, topic: bytes, timeout_s: float) -> socket.socket:
    """Connect to HOST:PORT, make sure of who is there, and say what about. PeerError when that fails, takes longer than
    `timeout_s`, or would go to another host in clear.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + timeout_s
    if credentials.keys is None and not credentials.plain_text and not is_loopback(host):
        raise PeerError(f"no connection to {address}: what is said would leave this host in clear; {REMEDY}")
    try:
        sock = socket.create_connection((host.strip("[]"), int(port)), timeout=timeout_s)
    except (OSError, ValueError) as error:
        raise PeerError(f"no connection to {address}: {error}") from error
    try:
        if credentials.keys is not None:
            sock = _encrypted(sock, credentials.keys, connects=True, deadline=deadline)
        introduce(sock, address, credentials.secret, topic, deadline)
    except BaseException:
        sock.close()
        raise
    return sock


def accept_call(sock: socket.socket, credentials: Credentials, timeout_s: float) -> tuple[socket.socket, bytes]:
    """Make sure of who has called, over TLS where there are keys: the socket to go on with, and what about. PeerError
    for a stranger, and the connection is closed."""
    deadline = time.monotonic() + timeout_s
    try:
        if credentials.keys is not None:
            sock = _encrypted(sock, credentials.keys, connects=False, deadline=deadline)
        return sock, answer(sock, credentials.secret, deadline)
    except BaseException:
        sock.close()
        raise


def _encrypted(sock: socket.socket, keys: KeyFolder, *, connects: bool, deadline: float) -> socket.socket:
    left = max(0.001, deadline - time.monotonic())
    stream = secure_stream(sock, keys, PROTOCOL, "worker", connects=connects, timeout_s=left)
    stream.wait_greeted(deadline)
    return stream


def introduce(sock: socket.socket, address: str, secret: bytes, topic: bytes, deadline: float) -> None:
    """The caller's part of the greeting, to whoever answers at `address`. PeerError as for `call`; the socket stays the
    caller's to close.
    """
    _send_at_once(sock)
    mine = secrets.token_bytes(_NONCE)
    write_all(sock, MAGIC + mine, deadline)
    said = _read_answer(sock, address, deadline)
    nonces = mine + said[:_NONCE]
    if not hmac.compare_digest(said[_NONCE:], _tag(secret, b"called", nonces)):
        raise PeerError(f"whoever answers at {address} does not know the secret of this start")
    if len(topic) > _MOST_TOPIC:
        raise PeerError(f"a topic of {len(topic)} bytes; at most {_MOST_TOPIC} are allowed")
    write_all(sock, _tag(secret, b"caller", nonces + topic) + len(topic).to_bytes(2, "little") + topic, deadline)
    sock.settimeout(None)


def _read_answer(sock: socket.socket, address: str, deadline: float) -> bytes:
    first = read_exactly(sock, 2, deadline)
    if is_tls(first):
        raise PeerError(f"whoever answers at {address} speaks TLS, and this host has no --peer-keys")
    said = first + read_exactly(sock, _NONCE + _TAG - len(first), deadline)
    if said.startswith(_WORD):
        raise _other_version(f"whoever answers at {address}", said)
    return said


def _other_version(who: str, said: bytes) -> PeerError:
    version = said[len(_WORD) : len(MAGIC)].decode("ascii", "backslashreplace")
    what = f"{who} speaks version {version} of the greeting of workers, and this is version {VERSION}"
    return PeerError(f"{what}; run the same version of homenode on both")


def answer(sock: socket.socket, secret: bytes, deadline: float) -> bytes:
    """Make sure of who has called, and learn what about. PeerError for a stranger; the socket stays the caller's to
    close.
    """
    _send_at_once(sock)
    hello = read_exactly(sock, len(MAGIC) + _NONCE, deadline)
    if is_tls(hello):
        raise PeerError("a caller speaks TLS, and this host has no --peer-keys")
    if hello[: len(MAGIC)] != MAGIC:
        if hello.startswith(_WORD):
            write_all(sock, MAGIC.ljust(_NONCE + _TAG, b"\0"), deadline)
            raise _other_version("a caller", hello)
        raise PeerError("a stranger called: these are no words of a worker")
    mine = _draw_nonce()
    nonces = hello[len(MAGIC) :] + mine
    write_all(sock, mine + _tag(secret, b"called", nonces), deadline)
    head = read_exactly(sock, _TAG + 2, deadline)
    size = int.from_bytes(head[_TAG:], "little")
    if size > _MOST_TOPIC:
        raise PeerError(f"a topic of {size} bytes; at most {_MOST_TOPIC} are allowed")
    topic = read_exactly(sock, size, deadline)
    if not hmac.compare_digest(head[:_TAG], _tag(secret, b"caller", nonces + topic)):
        raise PeerError("a stranger called, who does not know the secret of this start")
    sock.settimeout(None)
    return topic


def _draw_nonce() -> bytes:
    """A random nonce with which an answer can begin: callers take what begins as TLS or the word of this greeting for
    that, and one answer in 30,000 began so.
    """
    while True:
        drawn = secrets.token_bytes(_NONCE)
        if not is_tls(drawn) and not drawn.startswith(_WORD):
            return drawn


def _send_at_once(sock: socket.socket) -> None:
    if sock.family == socket.AF_UNIX:
        return
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise PeerError(f"the connection failed: {error}") from error


def name_of(secret: bytes, what: str) -> str:
    """A name that only those who know the secret can tell before it is used."""
    return _tag(secret, b"name", what.encode()).hex()[:32]


def _tag(secret: bytes, side: bytes, data: bytes) -> bytes:
    return hmac.new(secret, side + data, hashlib.sha256).digest()
