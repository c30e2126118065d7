"""Rules that RFC 9112 makes for a server beyond what h11 does: framing that can be read in two ways, versions, and
targets in absolute form.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import h11

LARGEST_HEAD = 64 * 1024  # bytes of request line and headers


class StrictConnection(h11.Connection):
    """The server's side of one connection. `problem`: why the last `next_event` raised."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, LARGEST_HEAD)
        self.problem: h11.RemoteProtocolError | None = None

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Return the event as h11's. Raises h11.RemoteProtocolError, whose `error_status_hint` is the status to answer
        with.
        """
        try:
            event = super().next_event()
            return strict(event) if isinstance(event, h11.Request) else event
        except h11.RemoteProtocolError as error:
            self.problem = error
            raise


def strict(request: h11.Request) -> h11.Request:
    """The request with its target in origin form. Raises h11.RemoteProtocolError for one that must not be served.

    A request with a Content-Length and a Transfer-Encoding has two ends, of which a proxy before this server may have
    believed the other: what it holds to be a body would be a request here (RFC 9112, 6.1 and 11.2). The same goes for a
    Transfer-Encoding in HTTP/1.0.
    """
    if not request.http_version.startswith(b"1."):
        version = request.http_version.decode("ascii")
        raise h11.RemoteProtocolError(f"HTTP/{version} is not served here; send HTTP/1.1", error_status_hint=505)
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            raise h11.RemoteProtocolError(
                "Content-Length and Transfer-Encoding contradict each other; send one of them"
            )
        if request.http_version == b"1.0":
            raise h11.RemoteProtocolError("HTTP/1.0 has no Transfer-Encoding; send a Content-Length")
    return _in_origin_form(request)


def _in_origin_form(request: h11.Request) -> h11.Request:
    """`GET http://host/path` is `GET /path` with `Host: host` (RFC 9112, 3.2.2)."""
    if not request.target.lower().startswith((b"http://", b"https://")):
        return request
    try:
        parts = urlsplit(request.target.decode("ascii"))
    except ValueError as error:
        raise h11.RemoteProtocolError(f"the request's target is no URL: {error}") from None
    path = parts.path or ("*" if request.method == b"OPTIONS" else "/")
    target = f"{path}?{parts.query}" if parts.query else path
    headers = [(name, value) for name, value in request.headers if name != b"host"]
    host = parts.netloc.rpartition("@")[2]
    return h11.Request(
        method=request.method,
        headers=[(b"host", host.encode("ascii")), *headers],
        target=target.encode("ascii"),
        http_version=request.http_version,
    )
