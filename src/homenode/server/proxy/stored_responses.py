"""Responses that decode servers keep: each is at the one that made it, and the proxy asks them in turn."""

from __future__ import annotations

import asyncio
import re

from starlette.requests import Request
from starlette.responses import Response

from homenode.server.http.failures import ApiError
from homenode.server.proxy.passed_requests import passed_with
from homenode.server.proxy.state import ProxyState
from homenode.server.proxy.upstreams import UpstreamAnswer, UpstreamAnswerTooLong, UpstreamError, target_of

_ID = re.compile(r"resp_[0-9a-f]{32}")
_LARGEST_ANSWER = 256 << 20  # bytes
_LARGEST_ITEM = 32 << 20  # of an answer that only tells whether a response is there
_NOT_HERE = 404


async def holder_of(state: ProxyState, request: Request, id: str) -> str | None:
    """The decode server that keeps a response, None where none does that answers now."""
    if not _ID.fullmatch(id):
        return None
    for url in state.usable("decode"):
        answer = await _ask(state, request, url, "GET", f"/v1/responses/{id}/input_items?limit=1", b"", _LARGEST_ITEM)
        if answer is not None and answer.status < 300:
            return url
    return None


async def passed_to_holder(state: ProxyState, request: Request) -> Response:
    """The answer of the decode server that keeps a response; where none does, that of the last one that was asked.
    Raises ApiError 503.
    """
    return await passed_with(state, request, _answer)


async def _answer(state: ProxyState, request: Request, body: bytes) -> UpstreamAnswer:
    path = target_of(request)
    last: UpstreamAnswer | None = None
    for url in state.usable("decode"):
        answer = await _ask(state, request, url, request.method, path, body, _LARGEST_ANSWER)
        if answer is not None and answer.status != _NOT_HERE:
            return answer
        last = answer or last
    if last is None:
        raise ApiError(
            503, "no decode server is usable; /health of the proxy says why", code="no_decoder", retry_after_s=2
        )
    return last


async def _ask(
    state: ProxyState, request: Request, url: str, method: str, path: str, body: bytes, limit: int
) -> UpstreamAnswer | None:
    """The answer of one server; None where it gives none in time, or a longer one than `limit` bytes."""
    upstream = state.upstreams[url]
    headers = upstream.headers(request.headers.items(), str(request.state.request_id))
    try:
        async with asyncio.timeout(state.config.idle_timeout):
            return await upstream.ask(method, path, headers, body or None, limit)
    except UpstreamError:
        state.watch.broke(url)
    except (UpstreamAnswerTooLong, TimeoutError):
        pass
    return None
