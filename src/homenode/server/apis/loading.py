"""POST /models/load, /models/unload and /models/reload, and GET /models: the models of a server of several, in the
words of llama.cpp's router.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.errors import UserError
from homenode.server.apis.openai.models import ModelList, models
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.several_models.kept import check_admin, kept_models, status_of
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import FieldHints, decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import read_json
from homenode.server.http.failures import ApiError


class ModelNamed(Struct, kw_only=True):
    """Body of /models/load and /models/unload."""

    model: str


class ModelChanged(Struct, kw_only=True):
    """Answer of /models/load and /models/unload: `status` as in /v1/models; what was asked for follows."""

    model: str
    success: bool = True
    status: dict[str, Any]


class ModelsReloaded(Struct, kw_only=True):
    """Answer of /models/reload: the models that differ by their settings."""

    success: bool = True
    added: list[str]
    changed: list[str]
    removed: list[str]


HINTS = FieldHints({}, {})
_decode = decode_as(ModelNamed, HINTS)


async def load(state: ServerState, request: Request) -> Response:
    """Begin to load a model; /v1/models tells when it is loaded."""
    check_admin()
    body = await read_json(state, request, _decode)
    kept = await kept_models(state).load(body.model)
    return json_response(ModelChanged(model=kept.name, status=status_of(kept)))


async def unload(state: ServerState, request: Request) -> Response:
    """Unload a model, when it has no requests any more."""
    check_admin()
    body = await read_json(state, request, _decode)
    kept = kept_models(state).unload(body.model)
    return json_response(ModelChanged(model=kept.name, status=status_of(kept)))


async def reload(state: ServerState, request: Request) -> Response:
    """Read the settings of all models again. What is wrong in them changes nothing, and is told."""
    check_admin()
    try:
        told = await kept_models(state).reload()
    except UserError as error:
        raise ApiError(400, error.message, param=error.param, code="invalid_models") from None
    return json_response(ModelsReloaded(added=told.added, changed=told.changed, removed=told.gone))


_FAILURES = (*POST_FAILURES[:2], 403, *POST_FAILURES[2:])

API = Api(
    operations=(
        Operation(path="/models", method="get", summary="The models served here.", handler=models, answer=ModelList),
        Operation(
            path="/models/load",
            method="post",
            summary="Load a model.",
            handler=load,
            answer=ModelChanged,
            body=ModelNamed,
            failures=_FAILURES,
        ),
        Operation(
            path="/models/unload",
            method="post",
            summary="Unload a model.",
            handler=unload,
            answer=ModelChanged,
            body=ModelNamed,
            failures=_FAILURES,
        ),
        Operation(
            path="/models/reload",
            method="post",
            summary="Read the settings of all models again.",
            handler=reload,
            answer=ModelsReloaded,
            failures=(400, 401, 403, 405, 500),
        ),
    )
)
