"""MACs of frames and payloads, under a key of one connection that proves what both ends have said in their greeting."""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum

from homenode.net.frames import MAC_BYTES, FrameError


class Direction(IntEnum):
    """The side whose frames a MAC is for."""

    FROM_CONNECTOR = 0
    FROM_ACCEPTOR = 1


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
