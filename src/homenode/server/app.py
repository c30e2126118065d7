"""The ASGI application over an engine: its routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from homenode.server import health, openapi
from homenode.server.chat import chat_completions
from homenode.server.completions import completions
from homenode.server.config import ServerConfig
from homenode.server.door import Door
from homenode.server.engine import EngineClient, Tokenizer
from homenode.server.kv_transfer import kv_transfer, release
from homenode.server.state import ALONE, ServerState, Share
from homenode.server.tokenize import detokenize, tokenize, tokenizer_info

Handler = Callable[[ServerState, Request], Awaitable[Response]]


def create_app(client: EngineClient, tokenizer: Tokenizer, config: ServerConfig, share: Share = ALONE) -> Application:
    """The application over a started engine client; `share`: of one that has others beside it."""
    return Application(ServerState(client, tokenizer, config, share))


class Application(Door):
    """The server of one model."""

    def __init__(self, state: ServerState) -> None:
        super().__init__(_routes(state), state.config.api_key, lambda: state.draining or state.lost is not None)
        self.state = state


def _routes(state: ServerState) -> list[Route]:
    document = msgspec.json.encode(openapi.document(state))

    async def openapi_json(state: ServerState, request: Request) -> Response:
        return Response(document, media_type="application/json")

    def get(path: str, handler: Handler) -> Route:
        return Route(path, _Endpoint(state, handler), methods=["GET"])

    def post(path: str, handler: Handler) -> Route:
        return Route(path, _Work(state, handler), methods=["POST"])

    return [
        get("/health", health.health),
        get("/version", health.version),
        get("/metrics", health.metrics),
        get("/openapi.json", openapi_json),
        get("/tokenizer_info", tokenizer_info),
        get("/kv_transfer", kv_transfer),
        Route(
            "/kv_transfer/release", _Endpoint(state, release), methods=["POST"]
        ),  # taken while draining, too: it ends work
        get("/v1/models", health.models),
        get("/v1/models/{model:path}", health.model),
        post("/tokenize", tokenize),
        post("/detokenize", detokenize),
        post("/v1/completions", completions),
        post("/v1/chat/completions", chat_completions),
    ]


class _Endpoint:
    """Runs a handler and sends its response."""

    def __init__(self, state: ServerState, handler: Handler) -> None:
        self._state, self._handler = state, handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._handler(self._state, Request(scope, receive))
        await response(scope, receive, send)


class _Work(_Endpoint):
    """An endpoint that takes no newcomers while draining, and whose requests the drain waits for, streams included."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._state.request():
            await super().__call__(scope, receive, send)
