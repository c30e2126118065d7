"""Sizes, times and counts as people write them: `512KiB`, `2GiB`, `1.5s`, `8k` tokens."""

from __future__ import annotations

import re

from homenode.errors import UserError

_BYTES = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0}
_TOKENS = {"": 1, "k": 2**10, "m": 2**20}
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Bytes in `text`: a whole number, or a number with a unit (`512KiB`, `1.5GB`; K, M, G alone are powers of ten).

    Raises UserError for anything else, for fractions of a byte, and for sizes of 2**63 bytes or more.
    """
    if isinstance(text, int):
        size: float = text
    else:
        match = _NUMBER.fullmatch(text)
        if not match or match[2].lower() not in _BYTES:
            raise UserError(
                f"not a size: {text!r}; write a number of bytes or a number with a unit, such as 512KiB or 2GiB"
            )
        size = (
            float(match[1]) * _BYTES[match[2].lower()] if "." in match[1] else int(match[1]) * _BYTES[match[2].lower()]
        )
    if size != int(size) or not 0 <= size < 2**63:
        raise UserError(f"not a size: {text!r}; it must be a whole number of bytes below 2**63")
    return int(size)


def format_bytes(size: int) -> str:
    """`size` bytes with a binary unit and at most one decimal: 1536 -> '1.5KiB'."""
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(value) >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.1f}".removesuffix(".0") + units[0]


def parse_seconds(text: str | float) -> float:
    """Seconds in `text`: a number, or a number with s, ms, us, m, min or h. Raises UserError for anything else."""
    if isinstance(text, int | float):
        return float(text)
    match = _NUMBER.fullmatch(text)
    if not match or match[2].lower() not in _SECONDS:
        raise UserError(f"not a duration: {text!r}; write seconds, or a number with a unit, such as 250ms, 30s or 5min")
    return float(match[1]) * _SECONDS[match[2].lower()]


def parse_tokens(text: str | int) -> int:
    """The count of tokens in `text`: a whole number, or a number with k (1024) or m (1048576), as models are named.

    Raises UserError for anything else, for fractions of a token, and for counts of 2**63 or more.
    """
    if isinstance(text, int):
        return text
    if _WHOLE.fullmatch(text):
        return int(text)
    match = _NUMBER.fullmatch(text)
    if not match or len(match[1]) > 18 or match[2].lower() not in _TOKENS:
        raise UserError(
            f"not a number of tokens: {text[:60]!r} is not a whole number, nor one with k (1024) or m (1048576), "
            "such as 8k"
        )
    factor = _TOKENS[match[2].lower()]
    count = float(match[1]) * factor if "." in match[1] else int(match[1]) * factor
    if count != int(count) or count >= 2**63:
        raise UserError(f"not a number of tokens: {text!r} is not a whole number below 2**63")
    return int(count)


def format_count(number: float, noun: str, plural: str | None = None) -> str:
    """`number` things: 1 -> '1 thread', 2 -> '2 threads'. `plural`: where more than an s is to differ ('cores are')."""
    shown = f"{number:g}" if isinstance(number, float) else str(number)
    return f"{shown} {noun if number == 1 else plural or noun + 's'}"


def format_progress(done: int, total: int, seconds: float, first: int = 0) -> str:
    """Return how far something of `total` bytes is after `seconds`, `first` of which were there before: bytes, bytes a
    second and, unless it is done, seconds left.
    """
    rate = max(0.0, (done - first) / max(seconds, 1e-3))
    left = f", {(total - done) / rate:.0f} s left" if rate > 0 and done < total else ""
    return f"{format_bytes(done)} of {format_bytes(total)}, {format_bytes(int(rate))}/s{left}"
