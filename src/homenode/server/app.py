"""The ASGI application over an engine: the APIs that it serves."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Route

from homenode.server import health, kv_transfer, openapi, tokenize
from homenode.server.apis.openai import models
from homenode.server.apis.openai.chat import endpoint as chat
from homenode.server.apis.openai.completions import endpoint as completions
from homenode.server.core.api import Api, Operation
from homenode.server.core.state import ALONE, FrontIdentity, ServerState
from homenode.server.http.config import ServerConfig
from homenode.server.http.endpoint import Endpoint
from homenode.server.http.middleware import HttpApplication
from homenode.server.interfaces.client import EngineClient
from homenode.server.interfaces.tokenizer import TokenizerLike

APIS = (models.API, completions.API, chat.API, tokenize.API, kv_transfer.API, health.API)


def create_app(
    client: EngineClient,
    tokenizer: TokenizerLike,
    config: ServerConfig,
    front: FrontIdentity = ALONE,
    apis: Sequence[Api] = APIS,
) -> Application:
    """The application over a started engine client; `front`: which one it is of those that serve together."""
    return Application(ServerState(client, tokenizer, config, front), apis)


class Application(HttpApplication):
    """The server of one model."""

    def __init__(self, state: ServerState, apis: Sequence[Api]) -> None:
        super().__init__(_routes(state, apis), state.config.api_key, lambda: state.draining or state.lost is not None)
        self.state = state


def _routes(state: ServerState, apis: Sequence[Api]) -> list[Route]:
    return [_route(state, operation) for api in openapi.with_document(state, apis) for operation in api.operations]


def _route(state: ServerState, operation: Operation) -> Route:
    path = operation.path.replace("{model}", "{model:path}")  # names of models may have slashes
    endpoint = Endpoint(state, operation.handler, admits=not operation.always_open)
    return Route(path, endpoint, methods=[operation.method.upper()])
