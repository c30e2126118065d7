"""TLS: the certificate of --ssl-certfile and its key, and every way in which they can be wrong."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

from homenode.errors import UserError
from homenode.server.doors.watched_files import WatchedFiles

_LARGEST_FILE = 1 << 20  # bytes
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_KEY, _ENCRYPTED = b"PRIVATE KEY-----", b"ENCRYPTED"


class Certificate:
    """The certificate that connections are encrypted with. New ones get `context` as it is then; others keep theirs."""

    def __init__(self, certfile: str, keyfile: str, ca_certs: str | None = None) -> None:
        """`ca_certs`: authorities of clients' certificates. Raises UserError that names the file which cannot be
        used."""
        files = (certfile, keyfile) if ca_certs is None else (certfile, keyfile, ca_certs)
        self._files = WatchedFiles(files, lambda: read_certificate(certfile, keyfile, ca_certs))

    @property
    def context(self) -> ssl.SSLContext:
        """Return the context for a connection that is made now."""
        return self._files.value

    async def watch(self) -> None:
        """Take the files anew whenever they change."""
        await self._files.watch(lambda context: None)


def read_certificate(certfile: str, keyfile: str, ca_certs: str | None = None) -> ssl.SSLContext:
    """The settings of a server's side of TLS, 1.2 or later. With `ca_certs` clients have to show a certificate that one
    of these authorities has signed. Raises UserError that names the file which cannot be used.
    """
    if _CERTIFICATE not in _content("ssl-certfile", certfile):
        raise _wrong("ssl-certfile", certfile, "holds no certificate in PEM (BEGIN CERTIFICATE)")
    key = _content("ssl-keyfile", keyfile)
    if _KEY not in key:
        raise _wrong("ssl-keyfile", keyfile, "holds no private key in PEM (BEGIN PRIVATE KEY)")
    if _ENCRYPTED in key:
        raise _wrong(
            "ssl-keyfile", keyfile, "is encrypted; write it without a passphrase (openssl pkey -in ... -out ...)"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certfile, keyfile, password=lambda: "")  # nobody is asked on a terminal
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise _wrong("ssl-keyfile", keyfile, f"is not the key of --ssl-certfile {certfile}") from None
        flag, path = ("ssl-keyfile", keyfile) if _is_certificate(certfile) else ("ssl-certfile", certfile)
        raise _wrong(flag, path, f"cannot be used ({error.reason or 'not valid PEM'})") from None
    except OSError as error:
        raise _wrong("ssl-certfile", certfile, f"cannot be read ({error.strerror})") from None
    if ca_certs is not None:
        _require_clients(context, ca_certs)
    return context


def _require_clients(context: ssl.SSLContext, ca_certs: str) -> None:
    if _CERTIFICATE not in _content("ssl-ca-certs", ca_certs):
        raise _wrong("ssl-ca-certs", ca_certs, "holds no certificate in PEM (BEGIN CERTIFICATE)")
    try:
        context.load_verify_locations(ca_certs)
    except ssl.SSLError as error:
        raise _wrong("ssl-ca-certs", ca_certs, f"cannot be used ({error.reason or 'not valid PEM'})") from None
    context.verify_mode = ssl.CERT_REQUIRED


def _content(flag: str, path: str) -> bytes:
    try:
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_FILE:
            raise _wrong(flag, path, f"is no regular file of at most {_LARGEST_FILE} bytes")
        return Path(path).read_bytes()
    except OSError as error:
        raise _wrong(flag, path, f"cannot be read ({error.strerror})") from error


def _is_certificate(path: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError:
        return False
    return True


def _wrong(flag: str, path: str, what: str) -> UserError:
    return UserError(f"--{flag} {path} {what}", param=flag.replace("-", "_"))
