"""Requests about the model rather than to it, passed to a decode server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import read_body, unless_gone
from homenode.server.http.failures import ApiError
from homenode.server.proxy.proxied_request import Choose
from homenode.server.proxy.routing import Prompt
from homenode.server.proxy.server_models import listed_models, model_in
from homenode.server.proxy.state import ProxyState
from homenode.server.proxy.upstreams import UpstreamAnswer, UpstreamAnswerTooLong, UpstreamError, target_of

_ASKED_AT_ONCE = 8  # servers that are asked for their models
_LARGEST_ANSWER = 256 << 20  # bytes; token ids take more room than the text they are of


async def passed(state: ProxyState, request: Request) -> Response:
    """The answer of a decode server; of another one when the first does not answer. Raises ApiError 502, 503 or 504."""
    return await passed_with(state, request, _answer)


async def passed_with(
    state: ProxyState,
    request: Request,
    ask: Callable[[ProxyState, Request, bytes], Coroutine[Any, Any, UpstreamAnswer]],
) -> Response:
    """The answer that `ask` gets for a request and its body, with its status and headers."""
    with state.bodies.lease() as lease:
        body = await read_body(state, request, lease)
        answer = await unless_gone(request.receive, ask(state, request, body))
    response = Response(answer.body, answer.status)
    response.raw_headers = [
        *(pair for pair in answer.headers if pair[0] != b"content-length"),
        (b"content-length", b"%d" % len(answer.body)),
    ]
    return response


async def passed_models(state: ProxyState, request: Request) -> Response:
    """The list of models of a decode server; where one has several, of all of them: each as its first server tells."""
    if all(instance.models is None for instance in state.of("decode")):
        return await passed(state, request)
    found = await unless_gone(request.receive, _models_of_all(state, request))
    if not found:
        raise ApiError(503, "no decode server tells its models", code="no_decoder", retry_after_s=2)
    ids = list(found)
    return json_response(
        {"object": "list", "data": list(found.values()), "first_id": ids[0], "last_id": ids[-1], "has_more": False}
    )


async def _models_of_all(state: ProxyState, request: Request) -> dict[str, msgspec.Raw]:
    """The models of all decode servers, some of which are asked at a time."""
    places = asyncio.Semaphore(_ASKED_AT_ONCE)

    async def models_of(url: str) -> dict[str, msgspec.Raw]:
        upstream = state.upstreams[url]
        headers = upstream.headers(request.headers.items(), str(request.state.request_id))
        try:
            async with places, asyncio.timeout(state.config.idle_timeout):
                answer = await upstream.ask("GET", "/v1/models", headers, None, _LARGEST_ANSWER)
            return listed_models(answer.body) if answer.status == 200 else {}
        except UpstreamError:
            state.watch.broke(url)
        except (UpstreamAnswerTooLong, TimeoutError, msgspec.DecodeError):
            pass  # others tell theirs
        return {}

    found: dict[str, msgspec.Raw] = {}
    for models in await asyncio.gather(*map(models_of, state.usable("decode"))):
        found |= {id: entry for id, entry in models.items() if id not in found}
    return found


async def _answer(state: ProxyState, request: Request, body: bytes) -> UpstreamAnswer:
    path = target_of(request)
    failed: frozenset[str] = frozenset()
    model = request.path_params.get("model") or model_in(body)
    deadline = time.monotonic() + state.config.idle_timeout
    for _ in range(state.config.decode_tries):
        choice = state.choose(Prompt(0, told=False), Choose(False, frozenset(), failed, True, 0.0), model=model)
        if choice is None:
            break
        decoder = choice.decoder.server
        upstream = state.upstreams[decoder]
        headers = upstream.headers(request.headers.items(), str(request.state.request_id))
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await upstream.ask(request.method, path, headers, body or None, _LARGEST_ANSWER)
        except UpstreamError:
            state.watch.broke(decoder)
            failed |= {decoder}
        except UpstreamAnswerTooLong:
            raise ApiError(
                502, f"the decode server's answer is larger than {_LARGEST_ANSWER} bytes", code="decoder_failed"
            ) from None
        except TimeoutError:
            raise ApiError(504, "the decode server did not answer in time", code="decoder_timeout") from None
    raise ApiError(503, "no decode server is usable; /health of the proxy says why", code="no_decoder", retry_after_s=2)
