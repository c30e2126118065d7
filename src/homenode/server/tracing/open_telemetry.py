"""Spans of OpenTelemetry, sent by OTLP over HTTP from a thread that nobody waits for. No other module imports its
packages, and this one is imported only where traces are wanted.

Which requests are sampled: as the client's header says, else as OTEL_TRACES_SAMPLER does. Other variables of
OpenTelemetry (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_BSP_..., OTEL_EXPORTER_OTLP_HEADERS) hold as well.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from homenode import __version__
from homenode.server.tracing.span import Attributes

_LOG = logging.getLogger("homenode.traces")
_LAST_S = 2.0  # for what is left at the end of the process
_PROPAGATOR = TraceContextTextMapPropagator()
_FAILED = 500  # the first status that is a server's fault


class Tracing:
    """The spans of this process. They are queued, and what finds no room, or no collector, is dropped."""

    def __init__(self, endpoint: str, service: str) -> None:
        """`endpoint`: the URL of the collector. `service`: the name of this one, where no variable says another."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it would tell of each batch; we tell once
        self._provider = TracerProvider(resource=_resource(service), shutdown_on_exit=False)
        if not isinstance(self._provider.sampler, ParentBased):
            self._provider.sampler = ParentBased(self._provider.sampler)
        exporter = _ToldOnce(OTLPSpanExporter(endpoint=endpoint), endpoint)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("homenode", __version__)

    def begin_request(self, name: str, headers: Mapping[str, str], attributes: Attributes) -> OpenTelemetrySpan:
        """The span of a request that came just now, below the one that its headers name."""
        clock = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(
            name, _PROPAGATOR.extract(headers), trace.SpanKind.SERVER, dict(attributes), start_time=time.time_ns()
        )
        return OpenTelemetrySpan(self._tracer, span, clock)

    def end_request(self, span: object, status: int) -> None:
        """End the span of a request, which was answered with `status`; 0: its client left before."""
        assert isinstance(span, OpenTelemetrySpan)
        if status:
            span.note_status(status)
        span.end()

    def close(self) -> None:
        """Send what is queued, for two seconds at most."""
        closing = threading.Thread(target=self._provider.shutdown, name="homenode-traces", daemon=True)
        closing.start()
        closing.join(_LAST_S)


class OpenTelemetrySpan:
    """A span. `clock`: nanoseconds between the time of day and `time.monotonic`, the same for a whole request."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span, clock: int) -> None:
        self._tracer, self._span, self._clock = tracer, span, clock
        self._ended = False

    @property
    def trace_id(self) -> str:
        """Return the trace that it is a part of."""
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    @property
    def sampled(self) -> bool:
        """Return whether it is kept."""
        return self._span.get_span_context().trace_flags.sampled

    def note(self, attributes: Attributes) -> None:
        """Add facts."""
        if not self._ended:
            self._span.set_attributes(dict(attributes))

    def note_status(self, status: int) -> None:
        """Add the status of the answer."""
        self.note({"http.response.status_code": status})
        if status >= 400:
            self.note({"error.type": str(status)})
        if status >= _FAILED:
            self.fail(str(status))

    def fail(self, reason: str) -> None:
        """Say that it ended badly."""
        if not self._ended:
            self._span.set_attribute("error.type", reason)
            self._span.set_status(trace.StatusCode.ERROR, reason)

    def add_phase(self, name: str, begin: float, end: float, attributes: Attributes) -> OpenTelemetrySpan:
        """A span below this one that is over."""
        child = self._child(name, trace.SpanKind.INTERNAL, self._ns(begin), attributes)
        child._end(self._ns(end))
        return child

    def begin_call(self, name: str, attributes: Attributes) -> OpenTelemetrySpan:
        """A span below this one for a request to another server."""
        return self._child(name, trace.SpanKind.CLIENT, self._ns(time.monotonic()), attributes)

    def headers(self) -> dict[str, str]:
        """The headers by which the server that is asked goes on with the trace."""
        found: dict[str, str] = {}
        _PROPAGATOR.inject(found, trace.set_span_in_context(self._span))
        return found

    def end(self) -> None:
        """It ends now."""
        self._end(self._ns(time.monotonic()))

    def _end(self, at: int) -> None:
        if not self._ended:
            self._ended = True
            self._span.end(at)

    def _child(self, name: str, kind: trace.SpanKind, begin: int, attributes: Attributes) -> OpenTelemetrySpan:
        context = trace.set_span_in_context(self._span)
        span = self._tracer.start_span(name, context, kind, dict(attributes), start_time=begin)
        return OpenTelemetrySpan(self._tracer, span, self._clock)

    def _ns(self, at: float) -> int:
        return int(at * 1e9) + self._clock


class _ToldOnce(SpanExporter):
    """Exports as another one does, and tells of the first time that it could not."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter, self._endpoint = exporter, endpoint
        self._told = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans, in the thread of the queue."""
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS and not self._told:
            self._told = True
            _LOG.warning(
                "traces cannot be sent to %s (--otlp-traces-endpoint): no collector takes them there; they are dropped "
                "until one does, which is told once",
                self._endpoint,
            )
        return result

    def shutdown(self) -> None:
        """End the connection."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing is kept here."""
        return True


def _resource(service: str) -> Resource:
    """The names of this process. What a variable says goes before."""
    own = {"service.name": service, "service.version": __version__, "service.instance.id": str(uuid.uuid4())}
    said = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in own.items() if name not in said})
