"""What operators and clients ask before and besides the work: /health, /version, /metrics, /v1/models."""

from __future__ import annotations

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from homenode import __version__
from homenode.errors import PeerError
from homenode.server.apis.openai.responses import EngineHealth, Health, Model, ModelList, Version
from homenode.server.core.state import ServerState
from homenode.server.http.failures import ApiError
from homenode.server.monitoring.server_metrics import CONTENT_TYPE


async def health(state: ServerState, request: Request) -> Response:
    """200 when the engine's own loop answered just now, or that of one of several; 503 when none did, is gone, waits for a worker that is being
    replaced, or the server is draining."""
    state.check_available()
    try:
        took = await state.client.heartbeat(state.config.health_timeout)
    except (PeerError, TimeoutError):
        message = f"the engine did not answer within {state.config.health_timeout:g} s"
        raise ApiError(503, message, code="engine_silent", retry_after_s=5) from None
    if (hindrance := state.client.hindrance) is not None:
        raise ApiError(503, hindrance, code="worker_lost", retry_after_s=1)
    engines = [EngineHealth(engine.number, engine.state, engine.restarts) for engine in state.client.engines]
    return _json(Health("ok", round(took, 6), engines or UNSET))


async def version(state: ServerState, request: Request) -> Response:
    """The version of homenode."""
    return _json(Version(__version__))


async def metrics(state: ServerState, request: Request) -> Response:
    """Prometheus text."""
    return Response(state.metrics.render(), headers={"Content-Type": CONTENT_TYPE})


async def models(state: ServerState, request: Request) -> Response:
    """Every name the model answers to."""
    return _json(ModelList(data=[_model(state, name) for name in state.models]))


async def model(state: ServerState, request: Request) -> Response:
    """One of them."""
    return _json(_model(state, state.model(request.path_params["model"])))


def _model(state: ServerState, name: str) -> Model:
    return Model(id=name, created=state.started, root=state.models[0], max_model_len=state.ready.max_model_len)


def _json(answer: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")
