"""The proxy's ASGI application: its routes, and what it answers itself."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from homenode import __version__
from homenode.server.apis.ollama import embed, refused
from homenode.server.apis.openai.embeddings import endpoint as embeddings
from homenode.server.apis.pooling import endpoint as pooling
from homenode.server.apis.scoring import endpoint as scoring
from homenode.server.health import ServerLoad, Version
from homenode.server.http.endpoint import Endpoint, json_response
from homenode.server.http.exchange import read_body
from homenode.server.http.middleware import HttpApplication
from homenode.server.keys.caller import caller
from homenode.server.page.api import page_routes
from homenode.server.page.files import is_open, is_reference, page_at_root
from homenode.server.proxy.client_request import read_client_request
from homenode.server.proxy.document import ProxyDocument
from homenode.server.proxy.forwarded_apis import (
    CHAT_COMPLETIONS,
    COMPLETIONS,
    INFILL,
    MESSAGES,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    RESPONSES,
    ForwardedApi,
)
from homenode.server.proxy.forwarder import Forwarder
from homenode.server.proxy.health import health
from homenode.server.proxy.overview import ProxyOverviewWork
from homenode.server.proxy.passed_requests import passed, passed_models
from homenode.server.proxy.state import ProxyState
from homenode.server.proxy.stored_responses import holder_of, passed_to_holder

_LONG = 1 << 18  # bytes of a body that is read off the event loop
_FORWARDED = {
    "/v1/completions": COMPLETIONS,
    "/v1/chat/completions": CHAT_COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
    "/infill": INFILL,
    "/api/chat": OLLAMA_CHAT,
    "/api/generate": OLLAMA_GENERATE,
}
_POOLING = (embeddings.API.operations, scoring.API.operations, pooling.API.operations, embed.OPERATIONS)
_ASKED_OF_A_DECODER = (  # what a decode server tells about the model they all serve
    ("GET", "/v1/models/{model:path}"),
    ("GET", "/tokenizer_info"),
    ("POST", "/apply-template"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/messages/count_tokens"),
    ("GET", "/api/tags"),
    ("GET", "/api/ps"),
    ("GET", "/api/version"),
    ("POST", "/api/show"),
    *((operation.method.upper(), operation.path) for api in _POOLING for operation in api),
    *((operation.method.upper(), operation.path) for operation in refused.OPERATIONS),
)
_OF_A_STORED_RESPONSE = (  # what the decode server answers that keeps it
    ("POST", "/v1/responses/input_tokens"),
    ("GET", "/v1/responses/{response_id}"),
    ("DELETE", "/v1/responses/{response_id}"),
    ("POST", "/v1/responses/{response_id}/cancel"),
    ("GET", "/v1/responses/{response_id}/input_items"),
)


def create_app(state: ProxyState) -> HttpApplication:
    """The application over a proxy's state."""
    own = [
        Route("/health", Endpoint(state, health), methods=["GET"]),
        Route("/livez", Endpoint(state, _livez), methods=["GET"]),
        Route("/readyz", Endpoint(state, _readyz), methods=["GET"]),
        Route("/ping", Endpoint(state, _readyz), methods=["GET", "POST"]),
        Route("/load", Endpoint(state, _load), methods=["GET"]),
        Route("/version", Endpoint(state, _version), methods=["GET"]),
        Route("/metrics", Endpoint(state, _metrics), methods=["GET"]),
        Route("/overview", Endpoint(state, ProxyOverviewWork().answer), methods=["GET"]),
    ]
    others = [
        Route("/", Endpoint(state, _root), methods=["GET"]),
        Route("/v1/models", Endpoint(state, passed_models, admits=True), methods=["GET"]),
    ]
    forwarded = [
        (Route(path, _ForwardedEndpoint(state, api), methods=["POST"]), api) for path, api in _FORWARDED.items()
    ]
    others += [route for route, _ in forwarded]
    others += [
        Route(path, Endpoint(state, passed, admits=True), methods=[method]) for method, path in _ASKED_OF_A_DECODER
    ]
    others += [
        Route(path, Endpoint(state, passed_to_holder, admits=True), methods=[method])
        for method, path in _OF_A_STORED_RESPONSE
    ]
    document = ProxyDocument(own, others, _FORWARDED)
    others.append(Route("/openapi.json", Endpoint(state, document.answer, admits=True), methods=["GET"]))
    shapes = [(route, api.error_shape) for route, api in forwarded if api.error_shape is not None]
    routes = [*own, *others, *page_routes(state, state.config)]
    traced = {*_FORWARDED, *(path for method, path in _ASKED_OF_A_DECODER if method == "POST")}
    opens = is_open if state.config.ui else is_reference
    return HttpApplication(
        routes,
        state.config,
        state.keys,
        lambda: state.draining,
        shapes,
        is_open=opens,
        tracing=state.tracing,
        traced=traced,
    )


class _ForwardedEndpoint:
    """An endpoint whose requests are forwarded to a prefill server, where one helps, and to a decode server."""

    def __init__(self, state: ProxyState, api: ForwardedApi) -> None:
        self._state, self._api = state, api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with self._state.request(), self._state.bodies.lease() as lease:
            body = await read_body(self._state, request, lease)
            if len(body) > _LONG:
                asked = await asyncio.to_thread(read_client_request, body, self._api)
            else:
                asked = read_client_request(body, self._api)
            asked = asked.ranked(caller())
            if asked.direct is not None:
                self._state.metrics.direct(asked.direct)
            holder = None
            if asked.goes_on_from is not None:
                holder = await holder_of(self._state, request, asked.goes_on_from)
            await Forwarder(self._state, request, asked, lease, send, holder).run()


async def _root(state: ProxyState, request: Request) -> Response:
    """The proxy's own page; whoever takes no HTML is told what a decode server tells."""
    if (own := page_at_root(state.config, request)) is not None:
        return own
    with state.request():
        return await passed(state, request)


async def _version(state: ProxyState, request: Request) -> Response:
    return json_response(Version(__version__))


async def _livez(state: ProxyState, request: Request) -> Response:
    return Response("ok\n", media_type="text/plain")


async def _readyz(state: ProxyState, request: Request) -> Response:
    """200 when a request would be taken, else what /health answers."""
    answer = await health(state, request)
    return Response("ok\n", media_type="text/plain") if answer.status_code == 200 else answer


async def _load(state: ProxyState, request: Request) -> Response:
    return json_response(ServerLoad(state.in_flight))


async def _metrics(state: ProxyState, request: Request) -> Response:
    text, kind = state.metrics.render(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": kind, "Vary": "Accept"})
