"""The ASGI application over an engine: the APIs that it serves."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.routing import Route

from homenode.server import health, kv_transfer, openapi, tokenize
from homenode.server.apis.anthropic import endpoint as messages
from homenode.server.apis.ollama import endpoint as ollama
from homenode.server.apis.openai import models
from homenode.server.apis.openai.chat import endpoint as chat
from homenode.server.apis.openai.completions import endpoint as completions
from homenode.server.apis.responses import api as responses
from homenode.server.core.api import Api, Operation
from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import Endpoint
from homenode.server.http.middleware import HttpApplication

APIS = (
    models.API,
    completions.API,
    chat.API,
    responses.API,
    messages.API,
    ollama.API,
    tokenize.API,
    kv_transfer.API,
    health.API,
)


def create_app(state: ServerState, apis: Sequence[Api] = APIS) -> HttpApplication:
    """The application that answers for the engine client of `state`, which is started."""
    routes = [
        (_route(state, operation), api.error_shape)
        for api in openapi.with_document(state, apis)
        for operation in api.operations
    ]
    return HttpApplication(
        [route for route, _ in routes],
        state.config.api_key,
        lambda: state.draining or state.lost is not None,
        [(route, shape) for route, shape in routes if shape is not None],
        strict=state.config.strict_requests,
    )


def _route(state: ServerState, operation: Operation) -> Route:
    path = operation.path.replace("{model}", "{model:path}")  # names of models may have slashes
    endpoint = Endpoint(state, operation.handler, admits=operation.admits)
    return Route(path, endpoint, methods=[operation.method.upper()])
