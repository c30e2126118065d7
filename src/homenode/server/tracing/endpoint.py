"""The address of a collector of traces, the packages that it takes to send some there, and the beginning and end of
that.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from homenode.errors import UserError
from homenode.installation import extra_command
from homenode.server.tracing.span import RequestTracing

_FLAG = "otlp_traces_endpoint"
_PATH = "/v1/traces"  # of a collector whose address has none


def parse_endpoint(text: str) -> str:
    """The URL that spans are posted to. Raises UserError for what is none, and for one with a user or a password, which
    logs would tell.
    """
    try:
        parts = urlsplit(text.strip())
        secret = "@" in (parts.netloc or text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known, secret = False, "@" in text
    if secret:
        raise UserError(
            "the address of a collector has a user or a password (what is before its @), which logs would tell; leave "
            "them out, and give credentials in OTEL_EXPORTER_OTLP_HEADERS"
        )
    if not known:
        raise UserError(f"{text!r} is no address of a collector; write http://HOST:4318/v1/traces (OTLP over HTTP)")
    return parts.geturl() if parts.path not in ("", "/") else parts._replace(path=_PATH).geturl()


def check_packages(endpoint: str) -> None:
    """Raises UserError where the packages of OpenTelemetry are missing."""
    try:
        import homenode.server.tracing.open_telemetry  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"--otlp-traces-endpoint {endpoint}: the packages of OpenTelemetry cannot be imported ({error}); "
            f"{_how_to_install()}, or leave the setting out",
            param=_FLAG,
        ) from None


def _how_to_install() -> str:
    return extra_command("otel", "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http")


def begin_tracing(endpoint: str | None, service: str) -> RequestTracing | None:
    """The traces of this process, sent to `endpoint`; None: there are none. Raises UserError where packages lack."""
    if endpoint is None:
        return None
    check_packages(endpoint)
    from homenode.server.tracing.open_telemetry import Tracing

    return Tracing(endpoint, service)


def end_tracing(tracing: RequestTracing | None) -> None:
    """Send what is left, within a bounded time."""
    if tracing is not None:
        tracing.close()
