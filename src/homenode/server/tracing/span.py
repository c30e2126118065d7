"""Spans as the rest of the server sees them; what they are made with is imported only where traces are wanted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from homenode.logs.request_mark import current_request_mark

if TYPE_CHECKING:
    from homenode.server.tracing.open_telemetry import Tracing

Attribute = str | bool | int | float | list[str]
Attributes = Mapping[str, Attribute]


class Span(Protocol):
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

    def add_phase(self, name: str, begin: float, end: float, attributes: Attributes) -> Span:
        """A span below this one that is over. `begin`, `end`: by `time.monotonic`."""

    def begin_call(self, name: str, attributes: Attributes) -> Span:
        """A span below this one for a request to another server, which begins now."""

    def headers(self) -> dict[str, str]:
        """The headers by which the server that is asked goes on with the trace."""

    def end(self) -> None:
        """It ends now; only the first call counts."""


def current_span() -> Span | None:
    """The span of the request that this task handles; None where no traces are wanted, or none of this request."""
    mark = current_request_mark()
    span: Span | None = None if mark is None else mark.span  # type: ignore[assignment]  # the log knows no spans
    return span


def exemplar_of(span: Span | None) -> dict[str, str] | None:
    """Return what names a trace in /metrics; None of a request that is not sampled."""
    return {"trace_id": span.trace_id} if span is not None and span.sampled else None


def begin_tracing(endpoint: str | None, service: str) -> Tracing | None:
    """The traces of this process, sent to `endpoint`; None where there is none. Raises UserError where packages lack."""
    if endpoint is None:
        return None
    from homenode.server.tracing.endpoint import check_packages

    check_packages(endpoint)
    from homenode.server.tracing.open_telemetry import Tracing

    return Tracing(endpoint, service)


def end_tracing(tracing: Tracing | None) -> None:
    """Send what is left, within a bounded time."""
    if tracing is not None:
        tracing.close()
