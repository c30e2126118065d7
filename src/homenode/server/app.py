"""The ASGI application over an engine: the APIs that it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from homenode.server import health, kv_sessions, kv_transfer, openapi, routing, tokenize
from homenode.server.apis.anthropic import endpoint as messages
from homenode.server.apis.decisions import endpoint as decisions
from homenode.server.apis.infill import endpoint as infill
from homenode.server.apis.ollama import endpoint as ollama
from homenode.server.apis.openai import models
from homenode.server.apis.openai.chat import endpoint as chat
from homenode.server.apis.openai.completions import endpoint as completions
from homenode.server.apis.openai.embeddings import endpoint as embeddings
from homenode.server.apis.pooling import endpoint as pooling
from homenode.server.apis.responses import api as responses
from homenode.server.apis.scoring import endpoint as scoring
from homenode.server.core.api import Api, Operation
from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import Endpoint
from homenode.server.http.failures import ErrorShape
from homenode.server.http.middleware import HttpApplication
from homenode.server.page import api as page
from homenode.server.page.api import page_routes
from homenode.server.page.files import is_open, is_reference

APIS = (
    models.API,
    completions.API,
    chat.API,
    responses.API,
    messages.API,
    ollama.API,
    infill.API,
    embeddings.API,
    scoring.API,
    decisions.API,
    pooling.API,
    tokenize.API,
    kv_transfer.API,
    kv_sessions.API,
    routing.API,
    page.API,
    health.API,
)


def create_app(state: ServerState, apis: Sequence[Api] | None = None) -> HttpApplication:
    """The application that answers for the models of `state`, whose engine clients are started, or are when somebody
    asks. `apis`: None: all.
    """
    if apis is None:
        apis = _apis(state)
    by_path: dict[str, list[tuple[Operation, Api]]] = {}
    shapes: dict[str, ErrorShape | None] = {}
    for api in openapi.with_document(state, apis):
        for operation in api.operations:
            by_path.setdefault(operation.path, []).append((operation, api))
            shapes[operation.path] = api.error_shape
    routes = [(_route(state, path, operations), shapes[path]) for path, operations in by_path.items()]
    served = [route for route, _ in routes]
    routes += [(Route(f"{api.prefix}{{rest:path}}", served[0].endpoint), api.error_shape) for api in apis if api.prefix]
    return HttpApplication(
        [*served, *page_routes(state, state.config)],
        state.config,
        state.keys,
        lambda: state.draining or state.lost is not None,
        [(route, shape) for route, shape in routes if shape is not None],
        strict=state.config.strict_requests,
        is_open=is_open if state.config.ui else is_reference,
        tracing=state.tracing,
        traced=worked_paths(apis),
    )


def _apis(state: ServerState) -> Sequence[Api]:
    """All APIs that this server has; what few have is imported only there, as others start sooner without."""
    apis: tuple[Api, ...] = APIS
    if state.models.changes:
        from homenode.server.apis.loading import API as LOADING

        apis = (*apis, LOADING)
    if state.batch_folder is not None:
        from homenode.server.apis.batches.api import API as BATCHES

        state.batch_folder.paths = batch_paths(apis)
        apis = (*apis, BATCHES)
    return apis


def run_batches(state: ServerState, app: HttpApplication) -> list[asyncio.Task[None]]:
    """Begin to run the batches of --batch-dir, where there is one: a task, which ends when the server drains."""
    if state.batch_folder is None:
        return []
    from homenode.server.batches.batch_runner import begin_batches

    return [begin_batches(state, app, state.batch_folder)]


def batch_paths(apis: Sequence[Api]) -> frozenset[str]:
    """The paths that requests of a batch may ask: those of work that has a body."""
    operations = (operation for api in apis for operation in api.operations)
    return frozenset(each.path for each in operations if each.admits and each.body is not None)


def worked_paths(apis: Sequence[Api]) -> frozenset[str]:
    """The paths to which work is posted."""
    operations = (operation for api in apis for operation in api.operations)
    return frozenset(each.path for each in operations if each.admits and each.method == "post")


class _PathEndpoint:
    """The endpoint that answers at one path, by the method."""

    def __init__(self, state: ServerState, operations: Sequence[tuple[Operation, Api]]) -> None:
        self._endpoints = {operation.method.upper(): _endpoint(state, operation, api) for operation, api in operations}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        await self._endpoints[method](scope, receive, send)


def _endpoint(state: ServerState, operation: Operation, api: Api) -> Endpoint[ServerState]:
    if not state.models.changes:
        return Endpoint(state, operation.handler, admits=operation.admits)
    # A server of one model starts sooner without.
    from homenode.server.core.several_models.leasing_endpoint import LeasingEndpoint

    return LeasingEndpoint(state, operation, api)


def _route(state: ServerState, path: str, operations: Sequence[tuple[Operation, Api]]) -> Route:
    """One for all methods of a path, so that who comes with another method is told all of them."""
    shown = path.replace("{model}", "{model:path}")  # names of models may have slashes
    return Route(shown, _PathEndpoint(state, operations), methods=[each.method.upper() for each, _ in operations])
