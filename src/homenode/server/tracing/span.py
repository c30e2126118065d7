"""Spans as the rest of the server sees them; what they are made with is imported only where traces are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from homenode.logs.request_mark import current_request_mark

Attribute = str | bool | int | float | list[str]
Attributes = Mapping[str, Attribute]


class RequestSpan(Protocol):
    """A piece of time of a request. Of a request that is not sampled nothing is kept, and every call costs nothing."""

    @property
    def trace_id(self) -> str:
        """Return the trace that it is a part of."""

    @property
    def sampled(self) -> bool:
        """Return whether it is kept."""

    def note(self, attributes: Attributes) -> None:
        """Add facts. None may hold a word of a prompt or an answer."""

    def fail(self, reason: str) -> None:
        """Say that it ended badly. `reason`: a word for programs."""

    def add_phase(self, name: str, begin: float, end: float, attributes: Attributes) -> RequestSpan:
        """A span below this one that is over. `begin`, `end`: by `time.monotonic`."""

    def begin_call(self, name: str, attributes: Attributes) -> RequestSpan:
        """A span below this one for a request to another server, which begins now."""

    def headers(self) -> dict[str, str]:
        """The headers by which the server that is asked goes on with the trace."""

    def end(self) -> None:
        """It ends now; only the first call counts."""


class RequestTracing(Protocol):
    """The spans of a process, and where they are sent."""

    def begin_request(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> RequestSpan:
        """The span of a request that came just now, below the one that its headers name."""

    def end_request(self, span: object, status: int) -> None:
        """End the span of a request, which was answered with `status`; 0: its client left before."""

    def close(self) -> None:
        """Send what is left, within a bounded time."""


def current_span() -> RequestSpan | None:
    """The span of the request that this task handles; None where no traces are wanted, or none of this request."""
    mark = current_request_mark()
    span: RequestSpan | None = None if mark is None else mark.span  # type: ignore[assignment]  # the log knows no spans
    return span


def exemplar_of(span: RequestSpan | None) -> dict[str, str] | None:
    """Return what names a trace in /metrics; None of a request that is not sampled."""
    return {"trace_id": span.trace_id} if span is not None and span.sampled else None
