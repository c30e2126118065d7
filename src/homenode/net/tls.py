"""One end of TLS 1.3 without a socket: bytes of the wire in and out, the handshake, and the greeting inside of it that
names the protocol. What went wrong is told by name.

    -> HELLO, length, protocol and role     inside TLS, when the caller has verified who was called
    <- WELCOME, or REFUSED, length, reason  when the called has verified the caller, too

Without the answer a caller would not know whether its own certificate was accepted: TLS 1.3 ends for a caller before.
"""

from __future__ import annotations

import ssl
from typing import Any

from homenode.errors import PeerError
from homenode.net.keys import KeyFolder, UnpinnedError

HELLO, WELCOME, REFUSED = b"homenode-net-1?", b"homenode-net-1!", b"homenode-net-1-"
_MOST_SAID = 512
_LENGTH = 2
_MOST_HELD = 64 << 10  # bytes of a handshake that may wait to be understood
_RECORD = 16 << 10

# Reasons of OpenSSL, each with the word for statistics and what it means.
_VERIFIED = {  # of the certificate that the other end shows
    "has expired": ("expired", "shows a certificate that has expired"),
    "not yet valid": ("expired", "shows a certificate that does not count yet (is a clock wrong?)"),
    "": ("authority", "shows a certificate that this cluster's authority has not signed"),
}
_ALERTS = {  # the other end's words about ours
    "CERTIFICATE_EXPIRED": ("expired", "refuses this host's certificate, which has expired"),
    "UNKNOWN_CA": ("authority", "refuses this host's certificate: another authority has signed it"),
    "DECRYPT_ERROR": ("authority", "refuses this host's certificate: another authority has signed it"),
    "BAD_CERTIFICATE": ("authority", "refuses this host's certificate"),
    "CERTIFICATE_UNKNOWN": ("authority", "refuses this host's certificate"),
    "CERTIFICATE_REQUIRED": ("no certificate", "wants a certificate, and none was shown"),
    "PROTOCOL_VERSION": ("downgrade", "does not speak TLS 1.3"),
    "NO_APPLICATION_PROTOCOL": ("protocol", "speaks another protocol"),
}
_REASONS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": ("no certificate", "shows no certificate"),
    "UNSUPPORTED_PROTOCOL": ("downgrade", "does not speak TLS 1.3, and nothing older is spoken here"),
    "NO_SUITABLE_SIGNATURE_ALGORITHM": ("downgrade", "speaks no TLS 1.3 that is spoken here"),
    "WRONG_VERSION_NUMBER": ("plain text", "sends plain text, or damaged bytes, where TLS is spoken"),
    "HTTP_REQUEST": ("plain text", "sends plain text (HTTP), where TLS is spoken"),
    "PACKET_LENGTH_TOO_LONG": ("plain text", "sends plain text, or damaged bytes, where TLS is spoken"),
    "RECORD_LAYER_FAILURE": ("plain text", "sends plain text, or damaged bytes, where TLS is spoken"),
}
_PLAIN = "plain text"


class TlsError(PeerError):
    """A connection that cannot be kept safe, or is not with a peer. `code` is a word for statistics."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, code=code)
        self.code = code


class TlsEnd:
    """One end. `greeted`: both ends have proved who they are, and payload goes through `write` and `read`."""

    def __init__(self, keys: KeyFolder, protocol: str, role: str, *, connects: bool, peer: str) -> None:
        """`peer`: what the other end is called in errors. UserError for keys that cannot be used."""
        self._connects, self._peer = connects, peer
        self._said = f"{protocol} {role}".encode()
        self._protocol = protocol
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = keys.context(connects=connects, protocol=protocol)
        self._tls = context.wrap_bio(self._in, self._out, server_side=not connects)
        self._shaken = self._ended = False
        self._heard = bytearray()
        self._first = b""
        self.greeted = False
        self.role = ""  # the other's, of a caller

    # The wire's side

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes from the wire. TlsError where too many wait to be understood."""
        if not self._shaken and len(self._first) < 3:
            self._first += bytes(data[:3])
        if not self.greeted and self._in.pending + len(data) > _MOST_HELD:
            raise TlsError("handshake", f"{self._peer} says {self._in.pending + len(data)} bytes in its handshake")
        self._in.write(data)

    def feed_end(self) -> None:
        """Note that the wire has ended."""
        self._in.write_eof()
        self._ended = True

    def take_wire(self) -> bytes:
        """Bytes that are to go onto the wire."""
        return self._out.read()

    # The handshake

    def greet(self) -> bool:
        """Go as far as the bytes that came allow; whether the greeting is over. TlsError when it has failed; what
        `take_wire` gives then tells the other end."""
        try:
            if not self._shaken:
                self._tls.do_handshake()
                self._shaken = True
                self._check_peer()
                if self._connects:
                    self._say(HELLO, self._said)
            self.greeted = self._hear_greeting()
        except ssl.SSLWantReadError:
            return False
        except UnpinnedError as error:
            self._refuse("its certificate is none of those pinned at the other end")
            raise TlsError("pin", f"{self._peer} shows the certificate {error.what}") from error
        except ssl.SSLError as error:
            raise self._named(error) from error
        return self.greeted

    def _check_peer(self) -> None:
        if self._tls.version() != "TLSv1.3":
            raise TlsError("downgrade", f"{self._peer} speaks {self._tls.version()}, and TLS 1.3 is wanted")
        if (spoken := self._tls.selected_alpn_protocol()) != self._protocol:
            self._refuse(f"{self._protocol} is spoken here")
            raise TlsError("protocol", f"{self._peer} speaks {spoken or 'no protocol of ours'}, not {self._protocol}")

    def _hear_greeting(self) -> bool:
        """Read the greeting, byte for byte no more than it has."""
        size = len(HELLO) + _LENGTH
        while len(self._heard) < size:
            if not (came := self._tls.read(size - len(self._heard))):
                raise TlsError("lost", f"{self._peer} has ended the connection in its greeting")
            self._heard += came
            if len(self._heard) == len(HELLO) + _LENGTH and size == len(self._heard):
                size += min(int.from_bytes(self._heard[-_LENGTH:], "little"), _MOST_SAID)
        kind, said = bytes(self._heard[: len(HELLO)]), bytes(self._heard[len(HELLO) + _LENGTH :])
        return self._welcomed(kind, said) if self._connects else self._called(kind, said)

    def _called(self, kind: bytes, said: bytes) -> bool:
        protocol, _, role = said.decode("ascii", "replace").partition(" ")
        if kind != HELLO or protocol != self._protocol:
            self._refuse(f"{self._protocol} is spoken here")
            raise TlsError(
                "protocol", f"{self._peer} greets for {protocol[:80]!r}, and {self._protocol} is spoken here"
            )
        self.role = role[:80]
        self._say(WELCOME, b"")
        return True

    def _welcomed(self, kind: bytes, said: bytes) -> bool:
        if kind == WELCOME:
            return True
        if kind == REFUSED:
            raise TlsError("refused", f"{self._peer} refuses this host: {said.decode('utf-8', 'replace')}")
        raise TlsError("protocol", f"{self._peer} answers with no greeting")

    def _refuse(self, reason: str) -> None:
        if not self._connects:
            self._say(REFUSED, reason.encode())

    def _say(self, kind: bytes, said: bytes) -> None:
        said = said[:_MOST_SAID]
        self._tls.write(kind + len(said).to_bytes(_LENGTH, "little") + said)

    # Payload

    def write(self, data: memoryview) -> None:
        """Encrypt; `take_wire` has the result."""
        while data:
            data = data[self._tls.write(data[:_RECORD]) :]

    def read_into(self, view: memoryview) -> int:
        """Decrypt what came into `view`, as far as both reach: how many bytes; 0: nothing yet. EOFError at the end that
        the other end announced, TlsError for what is no TLS or for an end that nobody has announced."""
        count = 0
        try:
            while count < len(view) and (self._in.pending or self._tls.pending() or self._ended):
                came: Any = self._tls.read(len(view) - count, view[count:])  # how many, with a buffer
                if not came:
                    break
                count += came
            else:
                return count
        except ssl.SSLWantReadError:
            return count
        except ssl.SSLError as error:
            if count:
                return count  # the next call finds it again
            raise self._named(error) from error
        if not count:
            raise EOFError
        return count

    def end(self) -> None:
        """Tell the other end that nothing more comes; `take_wire` has it."""
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            pass  # the other end's answer is not waited for

    def _named(self, error: ssl.SSLError) -> TlsError:
        code, what = self._reason(error)
        return TlsError(code, f"{self._peer} {what}")

    def _reason(self, error: ssl.SSLError) -> tuple[str, str]:
        reason = error.reason or ""
        if isinstance(error, ssl.SSLCertVerificationError):
            words = error.verify_message or ""
            found = next(found for mark, found in _VERIFIED.items() if mark in words)
            return found[0], f"{found[1]} ({words})"
        if isinstance(error, ssl.SSLEOFError) or "EOF" in reason:
            return "lost", "has ended the connection without a word" if self._shaken else (
                "has ended the connection in its handshake; does it have --peer-keys, too?"
            )
        if "ALERT" in reason:
            return next((found for mark, found in _ALERTS.items() if reason.endswith(mark)), self._unknown(error))
        if not self._shaken and self._first[:1] not in (b"", b"\x16", b"\x15"):
            return _PLAIN, _REASONS["WRONG_VERSION_NUMBER"][1] + "; do both ends have --peer-keys?"
        return _REASONS.get(reason, self._unknown(error))

    def _unknown(self, error: ssl.SSLError) -> tuple[str, str]:
        return "handshake" if not self.greeted else "damaged", f"breaks TLS ({error.reason or error.args[-1]})"


def is_tls(first: bytes | bytearray) -> bool:
    """Tell whether bytes with which a connection begins are those of TLS: a handshake, or an alert."""
    return len(first) >= 2 and first[0] in (0x15, 0x16) and first[1] == 0x03
