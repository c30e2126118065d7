"""The things that Ollama does with its models, and this server does not: each is refused with what to do instead."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from homenode.server.core.api import Operation
from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import Handler
from homenode.server.http.failures import ApiError

_FIXED = "this server has the model that it was started with; start `homenode serve` with another one"
_REFUSED = (
    ("/api/pull", "post", _FIXED),
    ("/api/push", "post", _FIXED),
    ("/api/create", "post", _FIXED),
    ("/api/copy", "post", "give the model another name with --served-model-name"),
    ("/api/delete", "delete", _FIXED),
)


def _handler(path: str, remedy: str) -> Handler[ServerState]:
    async def refuse(state: ServerState, request: Request) -> Response:
        raise ApiError(403, f"{path} is not answered here: {remedy}", code="unsupported")

    return refuse


OPERATIONS = tuple(
    Operation(
        path=path,
        method=method,
        summary=f"Refused: {remedy}.",
        handler=_handler(path, remedy),
        answer=dict,
        failures=(401, 403, 405, 500),
    )
    for path, method, remedy in _REFUSED
)
