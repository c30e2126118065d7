"""Endpoints that routers ask: /kv_event_sources and /get_server_info, and /reset_prefix_cache, in the words of vLLM."""

from __future__ import annotations

from typing import Any, cast

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode import __version__
from homenode.errors import PeerError
from homenode.server.core.api import Api, Operation
from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import json_response
from homenode.server.http.failures import ApiError
from homenode.server.keys.caller import caller
from homenode.server.models.served_model import ServedModel

_MODEL = {"model": {"type": "string"}}
_SWITCH = {"type": "boolean", "enum": [False]}  # true is refused, with what to do instead


class ServerInfo(Struct, kw_only=True):
    """Answer of /get_server_info. `block_size`: tokens of a KV block; `effective_attention_block_size`: the same, which
    vLLM changes for models that keep a state. `num_blocks`: of all engines. `kv_event_sources`: see there.
    """

    version: str
    model_path: str
    served_model_name: str
    max_model_len: int
    block_size: int
    effective_attention_block_size: int
    num_blocks: int
    dp_size: int
    enable_prefix_caching: bool
    kv_event_sources: dict[str, Any]


class CacheEmptied(Struct):
    """Answer of /reset_prefix_cache."""

    success: bool = True


async def kv_event_sources(state: ServerState, request: Request) -> Response:
    """Where each engine of a model tells which blocks it holds, by its number; empty where none does."""
    name = request.query_params.get("model")
    models = list(state.models) if name is None and state.models.changes else [state.models.find(name).model]
    return json_response(_sources(models[0]) if len(models) == 1 else {})


async def server_info(state: ServerState, request: Request) -> Response:
    """The facts about a model that a router goes by."""
    model = state.models.find(request.query_params.get("model")).model
    ready = model.ready
    return json_response(
        ServerInfo(
            version=__version__,
            model_path=model.name,  # where it lies on the server is nobody's business
            served_model_name=model.name,
            max_model_len=ready.max_model_len,
            block_size=ready.block_size,
            effective_attention_block_size=ready.block_size,
            num_blocks=ready.num_blocks,
            dp_size=max(1, len(model.client.engines)),
            enable_prefix_caching=bool(ready.details.get("prefix_caching")),
            kv_event_sources=_sources(model),
        )
    )


async def reset_prefix_cache(state: ServerState, request: Request) -> Response:
    """Have all engines forget what their prefix caches hold in KV memory, of a model or of all. Requests under way keep
    what they have; those that come after the answer find nothing.
    """
    if not caller().is_admin:
        text = f"the key `{caller().name}` may not empty the prefix cache; give it `admin = true` in --api-key-file"
        raise ApiError(403, text, code="not_admin")
    for switch, instead in (
        ("reset_external", "`homenode cache remove` empties a folder of --kv-disk"),
        ("reset_running_requests", "requests that run keep their KV, and end like all others"),
    ):
        if request.query_params.get(switch, "false") != "false":
            raise ApiError(400, f"{switch} cannot be had here: {instead}", param=switch, code="unsupported_parameter")
    name = request.query_params.get("model")
    for model in list(state.models) if name is None else [state.models.find(name).model]:
        await model.client.reset_prefix_cache()
        try:
            await model.client.heartbeat(state.config.health_timeout)  # its loop has taken that up, too
        except (PeerError, TimeoutError):
            text = f"the engine of the model `{model.name}` did not answer in time"
            raise ApiError(503, text, code="engine_silent", retry_after_s=5) from None
    return json_response(CacheEmptied())


def _sources(model: ServedModel) -> dict[str, Any]:
    return cast(dict[str, Any], model.ready.details.get("kv_events") or {})


API = Api(
    operations=(
        Operation(
            path="/kv_event_sources",
            method="get",
            summary="Where engines tell which KV blocks they hold.",
            handler=kv_event_sources,
            answer=dict,
            failures=(401, 404, 405, 500),
            query=_MODEL,
        ),
        Operation(
            path="/get_server_info",
            method="get",
            summary="Facts about a model that routers go by.",
            handler=server_info,
            answer=ServerInfo,
            failures=(401, 404, 405, 500),
            query=_MODEL,
        ),
        Operation(
            path="/reset_prefix_cache",
            method="post",
            summary="Empty the prefix cache.",
            handler=reset_prefix_cache,
            answer=CacheEmptied,
            failures=(400, 401, 403, 404, 405, 500, 503),
            query={**_MODEL, "reset_external": _SWITCH, "reset_running_requests": _SWITCH},
        ),
    )
)
