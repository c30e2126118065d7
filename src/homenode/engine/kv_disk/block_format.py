"""The bytes of a KV block on disk: a header, then what lies in the block, as it is or encrypted. Pure.

    offset  bytes
         0      4  magic, b"HNKV"
         4      4  version of this layout, little-endian as all numbers
         8      8  bytes behind the header
        16     16  name: the identity of the block (`kv.prefix.HashChain`)
        32     12  nonce of the encryption; zeros without a key
        44      4  1: encrypted, 0: not
        48     32  without a key SHA-256 over the store's identity, the header up to here and what is behind it; with
                   one the tag of AES-256-GCM, whose associated data are the store's identity and the header up to here
                   (16 bytes, then zeros)

So a block counts only where all of it is what was written, under this name, for this model, in this version.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

VERSION = 1
HEADER_BYTES = 80
NAME_BYTES = 16
_MAGIC = b"HNKV"
_PLAIN, _ENCRYPTED = 0, 1
_HEAD = struct.Struct("<4sIQ16s12sI")
_TAG_BYTES = 16

Buffer = bytes | bytearray | memoryview


class DamagedBlockError(Exception):
    """What was read is not the block that it should be; its text says why."""


class BlockFormat:
    """Blocks of one store identity. `key`: 32 bytes; None: blocks are not encrypted."""

    def __init__(self, identity: bytes, key: bytes | None = None) -> None:
        self._identity = identity
        self._cipher: AESGCM | None = None
        if key is not None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only who encrypts needs the package

            own = hashlib.blake2b(identity, key=key, person=b"kv-disk-block", digest_size=32).digest()
            self._cipher = AESGCM(own)

    @property
    def encrypts(self) -> bool:
        """Return whether there is a key."""
        return self._cipher is not None

    def encode(self, name: bytes, content: Buffer) -> tuple[bytes, Buffer]:
        """The header of a block, and what is to be written behind it."""
        size = memoryview(content).nbytes
        if self._cipher is None:
            head = _HEAD.pack(_MAGIC, VERSION, size, name, bytes(12), _PLAIN)
            return head + self._digest(head, [content]), content
        head = _HEAD.pack(_MAGIC, VERSION, size, name, secrets.token_bytes(12), _ENCRYPTED)
        sealed = self._cipher.encrypt(head[32:44], bytes(content), self._identity + head)
        return head + sealed[size:] + bytes(HEADER_BYTES - len(head) - _TAG_BYTES), memoryview(sealed)[:size]

    def check_header(self, header: bytes, name: bytes, size: int) -> None:
        """DamagedBlockError unless it is that of the block `name` with `size` bytes."""
        if len(header) != HEADER_BYTES:
            raise DamagedBlockError("it is cut within its header")
        magic, version, nbytes, found, _, kind = _HEAD.unpack(header[: _HEAD.size])
        if magic != _MAGIC:
            raise DamagedBlockError("it does not begin as a KV block does")
        if version != VERSION:
            raise DamagedBlockError(f"its version is {version}, {VERSION} is read here")
        if nbytes != size:
            raise DamagedBlockError(f"it is of {nbytes} bytes, {size} are wanted")
        if found != name:
            raise DamagedBlockError("it is another block than its name says")
        if kind != (_PLAIN if self._cipher is None else _ENCRYPTED):
            raise DamagedBlockError("it is encrypted" if self._cipher is None else "it is not encrypted")

    def check_content(self, header: bytes, content: Iterable[Buffer]) -> None:
        """DamagedBlockError unless these pieces, one behind the other, are what was written, without a key."""
        head, digest = header[: _HEAD.size], header[_HEAD.size :]
        if not hmac.compare_digest(self._digest(head, content), digest):
            raise DamagedBlockError("its digest is another one")

    def decrypt(self, header: bytes, sealed: bytes) -> bytes:
        """Return the content of a block that was written with the key. DamagedBlockError when it was not."""
        from cryptography.exceptions import InvalidTag

        assert self._cipher is not None
        head, tag, rest = header[: _HEAD.size], header[_HEAD.size : _HEAD.size + _TAG_BYTES], header[-_TAG_BYTES:]
        if any(rest):
            raise DamagedBlockError("its header has bytes that nobody wrote")
        try:
            return self._cipher.decrypt(head[32:44], sealed + tag, self._identity + head)
        except InvalidTag:
            raise DamagedBlockError("its tag is another one: other bytes, or another key") from None

    def fill(self, parts: Sequence[memoryview], header: bytes, body: Buffer) -> None:
        """Have these parts hold, one behind the other, the content of a block that was read whole. DamagedBlockError
        when it is not what was written, with the key if there is one.
        """
        if self._cipher is None:
            self.check_content(header, [body])
            content = memoryview(body)
        else:
            content = memoryview(self.decrypt(header, bytes(body)))
        for part in parts:
            into = part.cast("B")
            into[:], content = content[: into.nbytes], content[into.nbytes :]

    def _digest(self, head: bytes, content: Iterable[Buffer]) -> bytes:
        digest = hashlib.sha256(self._identity + head)
        for piece in content:
            digest.update(piece)
        return digest.digest()
