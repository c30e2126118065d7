"""GET /health of the proxy."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.http.endpoint import json_response
from homenode.server.http.failures import ErrorDetail
from homenode.server.proxy.instances import Instance, State
from homenode.server.proxy.state import ProxyState


class ServerHealth(Struct):
    """One server. `url`, `reason`: only where no key is asked for, as /health answers everybody."""

    state: State
    requests: int
    url: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET


class ProxyHealth(Struct):
    """Answer of /health. `pairs`: of a prefill and a decode server that can hand over now. `obstacles`: why others
    cannot.
    """

    status: Literal["ok", "starting", "unusable"]
    prefill: list[ServerHealth]
    decode: list[ServerHealth]
    pairs: int
    obstacles: list[str] | UnsetType = UNSET
    error: ErrorDetail | UnsetType = UNSET


async def health(state: ProxyState, request: Request) -> Response:
    """200 when every server was looked at and a decode server is usable, else 503."""
    state.check_available()
    prefillers, decoders = state.usable("prefill"), state.usable("decode")
    pairs = sum(state.fits(prefiller, decoder) for prefiller in prefillers for decoder in decoders)
    answer = ProxyHealth("ok", _servers(state, state.of("prefill")), _servers(state, state.of("decode")), pairs)
    if not state.config.asks_keys and (obstacles := [f"{p} to {d}: {why}" for p, d, why in state.obstacles()]):
        answer.obstacles = obstacles
    if not state.looked_at_all or not decoders:
        answer.status = "unusable" if state.looked_at_all else "starting"
        message = "no decode server is usable" if state.looked_at_all else "not all servers have been looked at yet"
        answer.error = ErrorDetail(
            message=message, type="service_unavailable_error", param=None, code=f"proxy_{answer.status}"
        )
        return Response(msgspec.json.encode(answer), 503, {"Retry-After": "1"}, "application/json")
    return json_response(answer)


def _servers(state: ProxyState, instances: list[Instance]) -> list[ServerHealth]:
    servers = []
    for instance in instances:
        server = ServerHealth(instance.state, state.loads.requests(instance.url))
        if not state.config.asks_keys:
            server.url, server.reason = instance.url, instance.reason or UNSET
        servers.append(server)
    return servers
