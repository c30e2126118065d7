"""Keys and certificates of the hosts of a cluster, written as `keys.KeyFolder` reads them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from homenode.errors import HostError, UserError
from homenode.net.keys import AUTHORITY, CERTIFICATE, KEY, PEERS, certificate_digest, digest_text

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

AUTHORITY_KEY = "authority.key.pem"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_EARLIER = timedelta(hours=1)  # clocks of hosts differ
_AUTHORITY_DAYS = 3650


@dataclass(frozen=True)
class MadeKeys:
    """A host's folder, and its certificate's digest in words."""

    name: str
    folder: Path
    digest: str


def make_keys(folder: Path, hosts: Sequence[str], days: int) -> list[MadeKeys]:
    """Write a folder for each host into `folder`, signed by an authority that is made where there is none yet; hosts
    that are there keep their keys, and the list of peers of all is written anew. Without hosts, `folder` itself is that
    of all hosts. UserError for a name or folder that cannot be, HostError where the files cannot be written.
    """
    wrong = [host for host in hosts if not _NAME.fullmatch(host) or host in (KEY, CERTIFICATE, AUTHORITY, PEERS)]
    if wrong:
        raise UserError(f"{wrong[0]!r} is no name of a host; take letters, digits, dots, - and _, at most 63")
    try:
        return _make_hosts(folder, list(dict.fromkeys(hosts)), days) if hosts else [_make_shared(folder, days)]
    except OSError as error:
        raise HostError(f"{folder}: keys cannot be written ({error.strerror})", errno=error.errno) from error


def _make_shared(folder: Path, days: int) -> MadeKeys:
    if (folder / KEY).exists() or (folder / AUTHORITY).exists():
        raise UserError(f"{folder} has keys already; remove them, or name another folder")
    _make_folder(folder)
    key, authority = _new_authority(days)
    _write(folder / AUTHORITY, _pem(authority))
    digest = _make_host(folder, "homenode", key, authority, days)
    _write(folder / PEERS, _peers([("homenode", digest)]).encode())
    return MadeKeys("homenode", folder, digest)


def _make_hosts(folder: Path, hosts: Sequence[str], days: int) -> list[MadeKeys]:
    if (folder / KEY).exists():
        raise UserError(f"{folder} is the folder of a host itself; name another one for several hosts")
    for host in hosts:
        if (folder / host / KEY).exists():
            raise UserError(f"{folder / host} has keys already; remove that folder to replace them")
    _make_folder(folder)
    key, authority = _open_authority(folder)
    for host in hosts:
        _make_folder(folder / host)
        _write(folder / host / AUTHORITY, _pem(authority))
        _make_host(folder / host, host, key, authority, days)
    found = [
        MadeKeys(each.name, each, digest_text(certificate_digest((each / CERTIFICATE).read_text())))
        for each in sorted(folder.iterdir())
        if (each / CERTIFICATE).is_file()
    ]
    peers = _peers([(one.name, one.digest) for one in found]).encode()
    for one in found:
        _write(one.folder / PEERS, peers)
    return found


def _peers(named: Sequence[tuple[str, str]]) -> str:
    lines = ["# certificates of peers that are accepted, by digest", *(f"{digest} {name}" for name, digest in named)]
    return "\n".join(lines) + "\n"


def _open_authority(folder: Path) -> tuple[EllipticCurvePrivateKey, Certificate]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not (folder / AUTHORITY_KEY).exists():
        if (folder / AUTHORITY).exists():
            raise UserError(f"{folder} has {AUTHORITY}, but not its key, {AUTHORITY_KEY}, which signs for more hosts")
        key, authority = _new_authority(_AUTHORITY_DAYS)
        _write(folder / AUTHORITY_KEY, _private(key), private=True)
        _write(folder / AUTHORITY, _pem(authority))
        return key, authority
    try:
        key_found = load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
        authority = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
    except (ValueError, TypeError) as error:
        raise UserError(f"{folder}: {AUTHORITY_KEY} or {AUTHORITY} cannot be used ({error})") from error
    if not isinstance(key_found, EllipticCurvePrivateKey) or key_found.public_key() != authority.public_key():
        raise UserError(f"{folder}: {AUTHORITY_KEY} is not the key of {AUTHORITY}")
    return key_found, authority


def _new_authority(days: int) -> tuple[EllipticCurvePrivateKey, Certificate]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"homenode authority {os.urandom(4).hex()}")])
    return key, _signed(key, name, key, name, days, authority=True)


def _make_host(folder: Path, name: str, signer: EllipticCurvePrivateKey, authority: Certificate, days: int) -> str:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    pem = _pem(_signed(key, subject, signer, authority.subject, days, authority=False))
    _write(folder / KEY, _private(key), private=True)
    _write(folder / CERTIFICATE, pem)
    return digest_text(certificate_digest(pem.decode()))


def _signed(
    key: EllipticCurvePrivateKey,
    subject: object,
    signer: EllipticCurvePrivateKey,
    issuer: object,
    days: int,
    *,
    authority: bool,
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID

    now = datetime.now(UTC)
    usage = x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    assert isinstance(subject, x509.Name) and isinstance(issuer, x509.Name)
    builder = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not authority:
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        name = str(subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value)
        builder = builder.add_extension(x509.ExtendedKeyUsage(both), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _private(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _make_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def _write(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file whole or not at all, readable by its owner alone from its first byte where it is `private`."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
