"""The ASGI application over an engine: its routes."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from homenode.server import health, openapi
from homenode.server.apis.openai.chat import chat_completions
from homenode.server.apis.openai.completions import completions
from homenode.server.core.state import ALONE, FrontIdentity, ServerState
from homenode.server.http.config import ServerConfig
from homenode.server.http.endpoint import Endpoint, Handler
from homenode.server.http.middleware import HttpApplication
from homenode.server.interfaces.client import EngineClient
from homenode.server.interfaces.tokenizer import TokenizerLike
from homenode.server.kv_transfer import kv_transfer, release
from homenode.server.tokenize import detokenize, tokenize, tokenizer_info


def create_app(
    client: EngineClient, tokenizer: TokenizerLike, config: ServerConfig, share: FrontIdentity = ALONE
) -> Application:
    """The application over a started engine client; `share`: of one that has others beside it."""
    return Application(ServerState(client, tokenizer, config, share))


class Application(HttpApplication):
    """The server of one model."""

    def __init__(self, state: ServerState) -> None:
        super().__init__(_routes(state), state.config.api_key, lambda: state.draining or state.lost is not None)
        self.state = state


def _routes(state: ServerState) -> list[Route]:
    document = msgspec.json.encode(openapi.document(state))

    async def openapi_json(state: ServerState, request: Request) -> Response:
        return Response(document, media_type="application/json")

    def get(path: str, handler: Handler[ServerState]) -> Route:
        return Route(path, Endpoint(state, handler), methods=["GET"])

    def post(path: str, handler: Handler[ServerState]) -> Route:
        return Route(path, Endpoint(state, handler, admits=True), methods=["POST"])

    return [
        get("/health", health.health),
        get("/version", health.version),
        get("/metrics", health.metrics),
        get("/openapi.json", openapi_json),
        get("/tokenizer_info", tokenizer_info),
        get("/kv_transfer", kv_transfer),
        Route(
            "/kv_transfer/release", Endpoint(state, release), methods=["POST"]
        ),  # taken while draining, too: it ends work
        get("/v1/models", health.models),
        get("/v1/models/{model:path}", health.model),
        post("/tokenize", tokenize),
        post("/detokenize", detokenize),
        post("/v1/completions", completions),
        post("/v1/chat/completions", chat_completions),
    ]
