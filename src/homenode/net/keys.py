"""The folder of a host's key, its certificate, and the peers that it accepts; read again for each connection, so that
keys can be changed while a service runs.

    key.pem          private key of this host, for its user alone
    certificate.pem  its certificate, signed by the authority
    authority.pem    certificate of the authority of this cluster: others' signatures count for nothing
    peers            a line for each accepted certificate, sha256:DIGEST NAME; without it all that are signed count

A certificate's digest is the SHA-256 of its DER bytes, as `openssl x509 -fingerprint -sha256` prints it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import ssl
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from homenode.errors import UserError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

KEY, CERTIFICATE, AUTHORITY, PEERS = "key.pem", "certificate.pem", "authority.pem", "peers"
_LARGEST_FILE = 1 << 20  # bytes
_MAKE = "make it with `homenode keys make`"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True)
class KeyFolder:
    """A folder as above; `check` reads all of it."""

    path: Path

    @property
    def name(self) -> str:
        """The folder as it is called in errors."""
        return str(self.path)

    def check(self) -> None:
        """UserError for whatever in it cannot be used, by its file."""
        for file in (KEY, CERTIFICATE, AUTHORITY):
            self._read(file)
        self.context(connects=True, protocol="homenode-check")
        self.pins()
        _check_time(self)

    def context(self, *, connects: bool, protocol: str) -> ssl.SSLContext:
        """The settings of one end of TLS: 1.3 alone, both ends show a certificate of this authority, no session is
        resumed. UserError for files that cannot be used.
        """
        self._check_private()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT if connects else ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # certificates are pinned, whatever they call their host
        context.verify_mode = ssl.CERT_REQUIRED
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
        if not connects:
            context.num_tickets = 0
        context.set_alpn_protocols([protocol])
        context.sslobject_class, context.sslsocket_class = _pinned(self)
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self.path / CERTIFICATE, self.path / KEY, password=lambda: "")
        except ssl.SSLError as error:
            what = f"is not the key of {CERTIFICATE}" if error.reason == "KEY_VALUES_MISMATCH" else "cannot be used"
            raise self._wrong(KEY, f"{what} ({error.reason or 'not valid PEM'})") from None
        except OSError as error:
            raise self._wrong(KEY, f"or {CERTIFICATE} cannot be read ({error.strerror})") from None
        try:
            context.load_verify_locations(self.path / AUTHORITY)
        except OSError as error:  # of TLS, too
            why = getattr(error, "reason", None) or error.strerror or "not valid PEM"
            raise self._wrong(AUTHORITY, f"cannot be used ({why})") from None

    def certificate(self) -> str:
        """This host's certificate, as PEM."""
        return self._read(CERTIFICATE)

    def digest(self) -> bytes:
        """SHA-256 of this host's certificate."""
        return certificate_digest(self.certificate())

    def pins(self) -> dict[bytes, str]:
        """The accepted certificates: names by digest. Empty: whatever the authority has signed."""
        if not os.path.lexists(self.path / PEERS):  # a link to nothing is no leave to accept all
            return {}
        found: dict[bytes, str] = {}
        for number, line in enumerate(self._read(PEERS).splitlines(), 1):
            words = line.partition("#")[0].split()
            if words:
                found[self._digest_in(words[0], number)] = " ".join(words[1:])
        if not found:
            raise self._wrong(
                PEERS,
                "names no certificate; leave the file out to accept all that the authority has signed",
            )
        return found

    def require_pinned(self, certificate: bytes) -> None:
        """Raise UnpinnedError unless a certificate, as DER, that the authority has signed is that of a peer."""
        pins, digest = self.pins(), hashlib.sha256(certificate).digest()
        equal = [hmac.compare_digest(digest, pin) for pin in pins]  # all of them, in constant time
        if pins and not any(equal):
            raise UnpinnedError(f"{digest_text(digest)}, which is none of those in {self.path / PEERS}")

    def _digest_in(self, word: str, line: int) -> bytes:
        try:
            digest = bytes.fromhex(word.removeprefix("sha256:").replace(":", ""))
        except ValueError:
            digest = b""
        if len(digest) != hashlib.sha256().digest_size:
            raise self._wrong(PEERS, f"line {line}: {word[:80]!r} is no sha256:DIGEST of a certificate")
        return digest

    def _check_private(self) -> None:
        try:
            mode = (self.path / KEY).stat().st_mode
        except OSError as error:
            raise self._missing(KEY, error) from None
        if mode & _OTHERS:
            raise self._wrong(KEY, f"can be read by others (mode {stat.S_IMODE(mode):o}); chmod 600 it")

    def _read(self, name: str) -> str:
        path = self.path / name
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_FILE:
                raise self._wrong(name, f"is no regular file of at most {_LARGEST_FILE} bytes")
            return path.read_text("utf-8")
        except OSError as error:
            raise self._missing(name, error) from None
        except UnicodeDecodeError:
            raise self._wrong(name, "is no text in UTF-8") from None

    def _missing(self, name: str, error: OSError) -> UserError:
        return self._wrong(name, f"cannot be read ({error.strerror}); {_MAKE}")

    def _wrong(self, name: str, what: str) -> UserError:
        return UserError(f"--peer-keys {self.path}: {name} {what}", param="peer_keys")


def certificate_digest(pem: str) -> bytes:
    """SHA-256 of the first certificate of a PEM text. UserError where there is none."""
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    start, stop = pem.find(begin), pem.find(end)
    try:
        if not 0 <= start < stop:
            raise ValueError
        der = ssl.PEM_cert_to_DER_cert(pem[start : stop + len(end)])
    except ValueError:
        raise UserError("a file holds no certificate in PEM (BEGIN CERTIFICATE)", param="peer_keys") from None
    return hashlib.sha256(der).digest()


def digest_text(digest: bytes) -> str:
    """`sha256:` and hexadecimal digits, as a line of `peers` has it."""
    return f"sha256:{digest.hex()}"


class UnpinnedError(ssl.SSLError):
    """The certificate of the other end is not among those that are pinned. `what`: its digest, and where it is not."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


def _pinned(keys: KeyFolder) -> tuple[type[ssl.SSLObject], type[ssl.SSLSocket]]:
    """Ends of TLS that are shaken only with a peer whose certificate is pinned, whoever uses them: in memory, and over
    a socket."""

    def check(certificate: bytes | None) -> None:
        if certificate is None:
            raise UnpinnedError("none")
        keys.require_pinned(certificate)

    class PinnedObject(ssl.SSLObject):
        def do_handshake(self) -> None:
            super().do_handshake()
            check(self.getpeercert(binary_form=True))

    class PinnedSocket(ssl.SSLSocket):
        def do_handshake(self, block: bool = False) -> None:
            super().do_handshake(block)
            check(self.getpeercert(binary_form=True))

    return PinnedObject, PinnedSocket


def valid_until(folder: KeyFolder) -> datetime:
    """The moment until which a host's certificate counts. UserError for one that cannot be read."""
    return _certificate(folder).not_valid_after_utc


def _certificate(folder: KeyFolder) -> Certificate:
    from cryptography import x509  # takes a while to import

    try:
        return x509.load_pem_x509_certificate(folder.certificate().encode())
    except ValueError as error:
        what = f"--peer-keys {folder.path}: {CERTIFICATE} cannot be used ({error})"
        raise UserError(what, param="peer_keys") from None


def _check_time(folder: KeyFolder) -> None:
    """UserError for a certificate that counts no more, or not yet: every peer would refuse it."""
    certificate = _certificate(folder)
    now, begin, end = datetime.now(UTC), certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not begin <= now <= end:
        what = f"has expired on {end:%Y-%m-%d}" if now > end else f"does not count before {begin:%Y-%m-%d %H:%M} UTC"
        raise UserError(
            f"--peer-keys {folder.path}: {CERTIFICATE} {what}; make another with `homenode keys make` (or set this "
            "host's clock)",
            param="peer_keys",
        )
