"""A key that clients send, by what is known of it: its digest, its name and its limits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from homenode.server.keys.service_tiers import ALL_TIERS, ServiceTier

UNNAMED_ROW = 0  # where requests are counted that come without a name


class NamedKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key. `digest`: SHA-256 of the secret, which is kept nowhere. `name`: empty for keys of --api-key.

    `row`: where its requests are counted (`counts.KeyCounts`). A limit of None does not hold anybody. `service_tiers`:
    those that its requests may have; the first is that of requests which leave it open. `models`: names of those that
    it may use; empty: all. `admin`: it may load and unload models.
    """

    digest: bytes
    name: str = ""
    row: int = UNNAMED_ROW
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    service_tiers: tuple[ServiceTier, ...] = ALL_TIERS
    models: tuple[str, ...] = ()
    admin: bool = False


def unnamed_keys(secrets: Sequence[str]) -> tuple[NamedKey, ...]:
    """The keys of --api-key, which have neither names nor limits."""
    return tuple(NamedKey(digest=digest_of(secret)) for secret in secrets)


def digest_of(secret: str) -> bytes:
    """Return what is kept and compared of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
