"""Pages of other sites in a browser (CORS): which may ask, and what their browsers are told.

A browser asks first (a preflight: OPTIONS with an Origin) whether a page may send what it wants to send, and shows the
page an answer only if that names the page's origin.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import Response

from homenode.server.doors.setting_values import ANY_ORIGIN

_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~ ,-]{1,1024}")  # of headers, separated by commas
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
_SHOWN = "x-request-id, x-homenode-ignored, retry-after"  # headers of an answer that a page may read besides the usual
_REMEMBERED_S = 600  # by a browser

HeaderList = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class AllowedOrigins:
    """The origins whose pages may ask; none where there are none."""

    allowed: Sequence[str] = ()

    def headers(self, request: Headers) -> HeaderList:
        """Return the headers for the answer to a request, whatever it is."""
        origin = request.get("origin")
        if origin is None or not self.allowed:
            return []
        if ANY_ORIGIN in self.allowed:
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _SHOWN.encode())]
        if origin.lower() not in self.allowed:
            return [(b"vary", b"Origin")]
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", _SHOWN.encode()),
            (b"vary", b"Origin"),
        ]

    def preflight(self, method: str, request: Headers) -> Response | None:
        """The answer to a preflight of an allowed origin, to which `headers` are still to be added; None: it is
        something else.
        """
        if method != "OPTIONS" or "access-control-request-method" not in request or not self._allows(request):
            return None
        headers = {"access-control-allow-methods": _METHODS, "access-control-max-age": str(_REMEMBERED_S)}
        wanted = request.get("access-control-request-headers", "")
        if _NAMES.fullmatch(wanted):
            headers["access-control-allow-headers"] = wanted
        if request.get("access-control-request-private-network") == "true":
            headers["access-control-allow-private-network"] = "true"
        return Response(status_code=204, headers=headers)

    def _allows(self, request: Headers) -> bool:
        origin = request.get("origin")
        return origin is not None and (ANY_ORIGIN in self.allowed or origin.lower() in self.allowed)
