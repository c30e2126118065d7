"""Endpoints that operators ask besides the work: /health and other probes, /load, /version and
/metrics.
"""

from __future__ import annotations

import asyncio
from typing import Literal

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from homenode import __version__
from homenode.engine.messages import EngineState
from homenode.errors import PeerError
from homenode.server.core.api import Api, Operation
from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import json_response
from homenode.server.http.failures import ApiError
from homenode.server.models.served_model import ServedModel
from homenode.server.page.files import page_at_root, running


class EngineHealth(Struct):
    """One of several engines. `state`: a `silent` one is not given requests, a `gone` one is not started any more."""

    engine: int
    state: EngineState
    restarts: int


class ModelHealth(Struct):
    """One of several models. `status`: `ok`, or the code of what stands against it. `engines`: if it has several."""

    model: str
    status: str
    heartbeat_seconds: float | None = None
    engines: list[EngineHealth] | UnsetType = UNSET


class Health(Struct):
    """Answer of /health. `heartbeat_seconds`: how long the engine loop, or the fastest of several, took to answer.
    `engines`: if the model has several. `models`: if there are several, of which one is well at least, or none is
    loaded.
    """

    status: Literal["ok"]
    heartbeat_seconds: float
    engines: list[EngineHealth] | UnsetType = UNSET
    models: list[ModelHealth] | UnsetType = UNSET


class ServerLoad(Struct):
    """Answer of /load: requests under way, of all processes that answer together."""

    server_load: int


class Version(Struct):
    """Answer of /version."""

    version: str


async def health(state: ServerState, request: Request) -> Response:
    """200 when the engine's own loop answered just now, or that of one of several, of one of the models; 503 when none
    did, is gone, waits for a worker that is being replaced, or the server is draining.
    """
    state.check_available()
    timeout = state.config.health_timeout
    if state.models.changes:  # those that are loaded now: it is well without any
        return await _of_loaded(state, timeout)
    seen = await asyncio.gather(*(_heartbeat(model, timeout) for model in state.models), return_exceptions=True)
    took = [each for each in seen if isinstance(each, float)]
    if not took:
        raise next(each for each in seen if isinstance(each, BaseException))
    if len(state.models) == 1:
        return json_response(Health("ok", took[0], _engines(state.models.first)))
    models = [_model_health(model, each) for model, each in zip(state.models, seen, strict=True)]
    return json_response(Health("ok", min(took), models=models))


async def _of_loaded(state: ServerState, timeout: float) -> Response:
    models = tuple(state.models)
    seen = await asyncio.gather(*(_heartbeat(model, timeout) for model in models), return_exceptions=True)
    told = [_model_health(model, each) for model, each in zip(models, seen, strict=True)]
    took = [each for each in seen if isinstance(each, float)]
    return json_response(Health("ok", min(took, default=0.0), models=told))


async def _heartbeat(model: ServedModel, timeout: float) -> float:
    """Seconds that the engine loop took to answer. Raises ApiError 503 where it does not, or nothing is computed."""
    if model.lost is not None:
        text = f"the engine of the model `{model.name}` is gone"
        raise ApiError(503, text, code="engine_lost", retry_after_s=5)
    try:
        took = await model.client.heartbeat(timeout)
    except (PeerError, TimeoutError):
        message = f"the engine did not answer within {timeout:g} s"
        raise ApiError(503, message, code="engine_silent", retry_after_s=5) from None
    if (hindrance := model.client.hindrance) is not None:
        raise ApiError(503, hindrance, code="worker_lost", retry_after_s=1)
    return round(took, 6)


def _model_health(model: ServedModel, seen: float | BaseException) -> ModelHealth:
    if isinstance(seen, float):
        return ModelHealth(model.name, "ok", seen, _engines(model))
    if isinstance(seen, ApiError):
        return ModelHealth(model.name, str(seen.body.error.code))
    raise seen


def _engines(model: ServedModel) -> list[EngineHealth] | UnsetType:
    return [EngineHealth(each.number, each.state, each.restarts) for each in model.client.engines] or UNSET


async def livez(state: ServerState, request: Request) -> Response:
    """200 as long as this process takes requests up, whatever its engine does: who starts a server again because it
    drains, or because a worker is being replaced, makes it worse.
    """
    return Response("ok\n", media_type="text/plain")


async def readyz(state: ServerState, request: Request) -> Response:
    """200 when a request would be taken: /health says so. Else its 503, with the reason."""
    await health(state, request)
    return Response("ok\n", media_type="text/plain")


async def load(state: ServerState, request: Request) -> Response:
    """How much there is to do, for who spreads requests over several servers."""
    return json_response(ServerLoad(state.load.total()))


async def root(state: ServerState, request: Request) -> Response:
    """The page for browsers, and words for whoever looks whether somebody is there, as clients do with HEAD."""
    return page_at_root(state.config, request) or running()


async def version(state: ServerState, request: Request) -> Response:
    """The version of homenode."""
    return json_response(Version(__version__))


async def metrics(state: ServerState, request: Request) -> Response:
    """Prometheus text, or that of OpenMetrics for who asks for it."""
    text, kind = state.metrics.render(request.headers.get("accept", ""))
    return Response(text, headers={"Content-Type": kind, "Vary": "Accept"})


API = Api(
    operations=(
        Operation(path="/", method="get", summary="That the server is running.", handler=root, answer=None),
        Operation(
            path="/health",
            method="get",
            summary="Whether the engine loop answers.",
            handler=health,
            answer=Health,
            failures=(405, 500, 503),
        ),
        Operation(path="/livez", method="get", summary="That this process lives.", handler=livez, answer=None),
        Operation(
            path="/readyz",
            method="get",
            summary="Whether a request would be taken.",
            handler=readyz,
            answer=None,
            failures=(405, 500, 503),
        ),
        *(
            Operation(
                path="/ping",
                method=method,
                summary="The same, for hosts of containers that ask here.",
                handler=readyz,
                answer=None,
                failures=(405, 500, 503),
            )
            for method in ("get", "post")
        ),
        Operation(path="/load", method="get", summary="Requests under way.", handler=load, answer=ServerLoad),
        Operation(path="/version", method="get", summary="The version of the server.", handler=version, answer=Version),
        Operation(path="/metrics", method="get", summary="Metrics as Prometheus text.", handler=metrics, answer=None),
    )
)
