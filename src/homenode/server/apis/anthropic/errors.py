"""Failures in the words of the Messages API."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from homenode.server.http.failures import CONTEXT_LENGTH_EXCEEDED, ApiError
from homenode.units import format_count

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
}
_SIZES = re.compile(r"maximum context length is (?P<most>\d+) tokens.* has (at least )?(?P<tokens>\d+) token")
_BUSY = frozenset({"overloaded", "draining"})


class MessagesErrorDetail(Struct, kw_only=True):
    """The fault: what went wrong. `type`: for programs."""

    type: str
    message: str


class MessagesError(Struct, kw_only=True):
    """The body of every answer of this API that is not a success."""

    type: Literal["error"] = "error"
    error: MessagesErrorDetail


def messages_error(failure: ApiError) -> MessagesError:
    """The body for a failure. Agents shorten a conversation by themselves when they read that it is too long, in words
    that they look for.
    """
    message = str(failure)
    if failure.body.error.code == CONTEXT_LENGTH_EXCEEDED:
        sizes = _SIZES.search(message)
        told = f"{format_count(int(sizes['tokens']), 'token')} > {sizes['most']} maximum; " if sizes else ""
        message = f"prompt is too long: {told}{message}"
    return MessagesError(error=MessagesErrorDetail(type=_type(failure), message=message))


def _type(failure: ApiError) -> str:
    if failure.body.error.code in _BUSY:
        return "overloaded_error"
    return _TYPES.get(failure.status, "invalid_request_error" if failure.status < 500 else "api_error")
