"""JSON that many clients get: encoded and compressed once."""

from __future__ import annotations

import gzip

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.page.files import takes_gzip


def packed_json(value: object) -> tuple[bytes, bytes]:
    """The JSON of a value, plain and compressed."""
    plain = msgspec.json.encode(value)
    return plain, gzip.compress(plain, 1, mtime=0)


def packed_response(request: Request, body: tuple[bytes, bytes]) -> Response:
    """The plain body or the compressed one, as the client takes it."""
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if takes_gzip(request.headers):
        return Response(body[1], headers={**headers, "Content-Encoding": "gzip"}, media_type="application/json")
    return Response(body[0], headers=headers, media_type="application/json")
