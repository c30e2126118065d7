"""Thoughts that clients keep for the server: sealed, so that only this service reads them and nobody changes them.

A sealed text is a nonce, the text combined with a key stream, and a tag over both (encrypt, then authenticate). The key
stream is SHAKE256 of a key and the nonce, the tag is keyed BLAKE2b; both keys are derived from the service's secret.
The standard library has no authenticated cipher, and TLS here is its own: a library of ciphers would be there for this
alone.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets

_NONCE_BYTES = 16  # drawn for every text: 2^64 texts before two of one secret are likely to share one
_TAG_BYTES = 32
_FORM = b"\x01"  # the version of what follows


class ThoughtSeal:
    """Seals texts with one secret. Servers of the same secret open each other's."""

    def __init__(self, secret: str | None = None) -> None:
        """`secret`: any text; None: drawn here, so that nobody else can open what is sealed."""
        given = secrets.token_bytes(32) if secret is None else secret.encode()
        self._cipher_key = _derived(given, b"homenode-cipher")
        self._tag_key = _derived(given, b"homenode-tag")

    def seal(self, text: str) -> str:
        """The sealed text, as characters of base64."""
        nonce, plain = secrets.token_bytes(_NONCE_BYTES), text.encode("utf-8", "surrogatepass")
        body = _FORM + nonce + self._combined(nonce, plain)
        return base64.urlsafe_b64encode(body + self._tag(body)).decode()

    def open(self, sealed: str) -> str | None:
        """The text that was sealed; None for anything that was not sealed with this secret."""
        try:
            given = base64.b64decode(sealed.encode(), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        body, tag = given[:-_TAG_BYTES], given[-_TAG_BYTES:]
        if len(body) < 1 + _NONCE_BYTES or not hmac.compare_digest(tag, self._tag(body)):
            return None
        nonce, rest = body[1 : 1 + _NONCE_BYTES], body[1 + _NONCE_BYTES :]
        return self._combined(nonce, rest).decode("utf-8", "surrogatepass") if body[:1] == _FORM else None

    def _combined(self, nonce: bytes, text: bytes) -> bytes:
        """The text xor the key stream of `nonce`; a second time gives the text again."""
        stream = hashlib.shake_256(self._cipher_key + nonce).digest(len(text))
        return (int.from_bytes(text, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(text), "big")

    def _tag(self, body: bytes) -> bytes:
        return hashlib.blake2b(body, digest_size=_TAG_BYTES, key=self._tag_key).digest()


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hmac.digest(hashlib.sha256(secret).digest(), purpose, "sha256")
