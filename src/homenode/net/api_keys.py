"""API keys in the headers of requests.

A header has the bytes of a key, which Starlette reads as Latin-1. A key in a setting is UTF-8, where bytes that are
none stand as lone surrogates.
"""

from __future__ import annotations

from collections.abc import Mapping

KEY_HEADERS = ("authorization", "x-api-key")  # where clients put their key


def keys_in(headers: Mapping[str, str]) -> list[str]:
    """Return the keys that a request's headers bring, as settings have them. Empty ones are none."""
    kind, _, bearer = headers.get("authorization", "").partition(" ")
    given = [bearer if kind.lower() == "bearer" else "", headers.get("x-api-key", "")]
    bare = (key.strip(" \t") for key in given)
    return [key.encode("latin-1").decode("utf-8", "surrogateescape") for key in bare if key]


def header_with(key: str) -> dict[str, str]:
    """Return the header that brings a key of a setting."""
    return {"authorization": f"Bearer {key.encode('utf-8', 'surrogateescape').decode('latin-1')}"}
