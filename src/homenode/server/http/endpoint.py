"""An endpoint: an ASGI application that runs a handler with the state of its application."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from homenode.server.http.admission import RequestAdmission

S = TypeVar("S", bound=RequestAdmission)
Handler = Callable[[S, Request], Awaitable[Response]]


def json_response(answer: object) -> Response:
    """200 with `answer` as JSON."""
    return Response(msgspec.json.encode(answer), media_type="application/json")


class Endpoint(Generic[S]):
    """Runs a handler and sends its response.

    `admits`: requests are refused while the application drains or after it lost its engine, and a drain waits for those
    under way, their streams included.
    """

    def __init__(self, state: S, handler: Handler[S], *, admits: bool = False) -> None:
        self._state, self._handler, self._admits = state, handler, admits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._admits:
            await self._respond(scope, receive, send)
            return
        with self._state.request():
            await self._respond(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._handler(self._state, Request(scope, receive))
        await response(scope, receive, send)
