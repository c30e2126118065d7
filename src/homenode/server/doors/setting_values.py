"""Settings of the doors, from text to values."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from homenode.errors import UserError

ANY_ORIGIN = "*"
_PERMISSIONS = re.compile(r"0?[0-7]{3}")
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def parse_origins(text: str) -> tuple[str, ...]:
    """The origins in `text`, separated by commas. Raises UserError for what is none."""
    found = tuple(_origin(part.strip()) for part in str(text).split(",") if part.strip())
    if not found:
        raise UserError("no origin is given; give one, such as https://app.example, or leave this setting out")
    return found


def _origin(text: str) -> str:
    """Return the origin as browsers write it: lower case, without a slash at the end."""
    if text in (ANY_ORIGIN, "null"):
        return text
    try:
        parts = urlsplit(text)
        parts.port  # noqa: B018  # raises where it is none
    except ValueError as error:
        raise UserError(f"{text!r} is no origin: {error}") from None
    if not parts.scheme or not parts.netloc or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise UserError(f"{text!r} is no origin; write https://HOST or http://HOST:PORT, or * for every page")
    return f"{parts.scheme}://{parts.netloc}".lower()


def parse_root_path(text: str) -> str:
    """`text` without a slash at its end. Raises UserError for what is no path."""
    path = str(text).rstrip("/")
    if not _ROOT_PATH.fullmatch(path) or any(part in (".", "..") for part in path.split("/")):
        raise UserError(f"{text!r} is no path; write it as /NAME or /NAME/NAME, of letters, digits, dots and dashes")
    return path


def parse_permissions(text: str) -> str:
    """Octal digits, such as 660. Raises UserError for what is none."""
    if not _PERMISSIONS.fullmatch(str(text)):
        raise UserError(f"{text!r} are no permissions; write three octal digits, such as 600 or 660")
    return str(text)
