"""The header `traceparent` of W3C Trace Context: which trace a request is a part of. Pure."""

from __future__ import annotations

import re

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN, _NO_VERSION = "0" * 32, "0" * 16, "ff"


def trace_id_of(header: str) -> str:
    """Return the id of the trace that a header names; empty where there is none, or it is not one."""
    if not header or (found := _HEADER.fullmatch(header.strip())) is None:
        return ""
    version, trace, span, _, more = found.groups()
    wrong = version == _NO_VERSION or trace == _NO_TRACE or span == _NO_SPAN or (version == "00" and more)
    return "" if wrong else trace
