"""The proxy's ASGI application: its routes, and what it answers itself."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from homenode import __version__
from homenode.server.door import Door
from homenode.server.exchange import read_body
from homenode.server.metrics import CONTENT_TYPE
from homenode.server.proxy.forward import Forward
from homenode.server.proxy.health import health
from homenode.server.proxy.passing import passed
from homenode.server.proxy.state import ProxyState
from homenode.server.proxy.wanted import wanted
from homenode.server.responses import Version

Handler = Callable[[ProxyState, Request], Awaitable[Response]]

_LONG = 1 << 18  # bytes of a body that is read off the event loop
_ASKED_OF_A_DECODER = (  # what a decode server tells about the model they all serve
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model:path}"),
    ("GET", "/tokenizer_info"),
    ("GET", "/openapi.json"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
)


def create_app(state: ProxyState) -> Door:
    """The application over a proxy's state."""
    routes = [
        Route("/health", _Endpoint(state, health), methods=["GET"]),
        Route("/version", _Endpoint(state, _version), methods=["GET"]),
        Route("/metrics", _Endpoint(state, _metrics), methods=["GET"]),
        Route("/v1/completions", _Generation(state, chat=False), methods=["POST"]),
        Route("/v1/chat/completions", _Generation(state, chat=True), methods=["POST"]),
    ]
    routes += [
        Route(path, _Endpoint(state, _counted(passed)), methods=[method]) for method, path in _ASKED_OF_A_DECODER
    ]
    return Door(routes, state.config.api_key, lambda: state.draining)


class _Endpoint:
    """Runs a handler and sends its response."""

    def __init__(self, state: ProxyState, handler: Handler) -> None:
        self._state, self._handler = state, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._handler(self._state, Request(scope, receive))
        await response(scope, receive, send)


class _Generation:
    """An endpoint whose requests make the journey over a prefill and a decode server."""

    def __init__(self, state: ProxyState, *, chat: bool) -> None:
        self._state, self._chat = state, chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with self._state.request(), self._state.bodies.lease() as lease:
            body = await read_body(self._state, request, lease)
            if len(body) > _LONG:
                asked = await asyncio.to_thread(wanted, body, chat=self._chat)
            else:
                asked = wanted(body, chat=self._chat)
            if asked.direct is not None:
                self._state.metrics.direct(asked.direct)
            await Forward(self._state, request, asked, lease, send).run()


def _counted(handler: Handler) -> Handler:
    """A handler whose requests the drain waits for."""

    @functools.wraps(handler)
    async def counted(state: ProxyState, request: Request) -> Response:
        with state.request():
            return await handler(state, request)

    return counted


async def _version(state: ProxyState, request: Request) -> Response:
    return Response(msgspec.json.encode(Version(__version__)), media_type="application/json")


async def _metrics(state: ProxyState, request: Request) -> Response:
    return Response(state.metrics.render(), headers={"Content-Type": CONTENT_TYPE})
