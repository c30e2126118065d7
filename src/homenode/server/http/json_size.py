"""The amount that a JSON body holds, told before it is decoded.

The decoder makes an object of every list, and keeps the interpreter's lock while it does: a body of 16 MB made of empty
lists takes it for seconds, and gigabytes. So a large body's lists, objects and values are counted first, in slices
between which other threads run.
"""

from __future__ import annotations

from typing import NamedTuple

from homenode.server.http.failures import ApiError

SMALL_BODY = 2**17  # bytes that are decoded within milliseconds, whatever they hold
MOST_CONTAINERS = 2**16  # lists and objects; a conversation of 4,096 messages of several parts has fewer
MOST_VALUES = 2**22  # as many prompt tokens as one request may have
_SLICE_BYTES = 2**18


class JsonSize(NamedTuple):
    """Lists and objects, and an upper bound of all values."""

    containers: int
    values: int


def json_size(body: bytes) -> JsonSize:
    """Return what is in `body`, which need not be valid JSON."""
    containers = commas = 0
    inside = False  # of a string
    at = 0
    while at < len(body):
        part = body[at : at + _SLICE_BYTES]
        if backslashes := len(part) - len(part.rstrip(b"\\")):
            part = body[at : at + _SLICE_BYTES + backslashes % 2]  # a backslash and what it escapes stay together
        at += len(part)
        pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        outside = b"".join(pieces[inside::2])
        inside ^= not len(pieces) % 2
        containers += outside.count(b"[") + outside.count(b"{")
        commas += outside.count(b",")
    return JsonSize(containers, containers + commas + 1)


def check_json_size(body: bytes) -> None:
    """Raises ApiError 400 for a body that holds too much."""
    size = json_size(body)
    for what, count, most in (
        ("lists and objects", size.containers, MOST_CONTAINERS),
        ("values", size.values, MOST_VALUES),
    ):
        if count > most:
            raise ApiError(400, f"the body holds {count} {what}; at most {most} are taken", code="request_too_large")
