"""The mark of the request that is being handled: what lines of the log name it by."""

from __future__ import annotations

from contextvars import ContextVar, Token
from dataclasses import dataclass


@dataclass(slots=True)
class RequestMark:
    """Names of a request: its own id, and that of the trace it is a part of, empty where it is of none. `span`: what
    that trace has of it, for who makes spans.
    """

    request_id: str
    trace_id: str = ""
    span: object | None = None


_CURRENT: ContextVar[RequestMark | None] = ContextVar("homenode.request_mark", default=None)


def set_request_mark(mark: RequestMark) -> Token[RequestMark | None]:
    """Say which request this task handles from here on. The result is for `reset_request_mark`."""
    return _CURRENT.set(mark)


def reset_request_mark(token: Token[RequestMark | None]) -> None:
    """Go back to what was handled before."""
    _CURRENT.reset(token)


def current_request_mark() -> RequestMark | None:
    """The mark of the request that this task handles; None outside of any."""
    return _CURRENT.get()
