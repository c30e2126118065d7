"""An answer sent as its request wants it: as a stream of events or as one body."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response

from homenode.server.core.state import ServerState
from homenode.server.http.exchange import unless_gone
from homenode.server.http.sse import EventStream


class ApiAnswer(Protocol):
    """What an endpoint makes of a generation."""

    def events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events, the last one included."""

    async def whole(self) -> bytes:
        """Everything at once as JSON. Raises ApiError when a sequence ends without a result."""


async def respond(state: ServerState, request: Request, answer: ApiAnswer, *, stream: bool) -> Response:
    """The response. Raises what `ApiAnswer.whole` raises, and ClientGone when nobody is left to answer."""
    if stream:
        return EventStream(request, answer.events(), keep_alive_s=state.config.sse_keep_alive)
    whole = await unless_gone(request.receive, answer.whole())
    return Response(whole, media_type="application/json")
