"""GET /v1/models: the names that the served models answer to."""

from __future__ import annotations

import datetime
from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.core.api import Api, Operation
from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import json_response
from homenode.server.models.served_model import ServedModel


class Model(Struct, kw_only=True):
    """A model that can be asked for. `max_model_len`: most tokens of prompt and answer together. `type`, `display_name`
    and `created_at` are for clients of the Anthropic API, which lists models at the same path.
    """

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "homenode"
    root: str
    max_model_len: int


class ModelList(Struct, kw_only=True):
    """Answer of /v1/models: all of them, whatever part a client of the Anthropic API asks for."""

    object: Literal["list"] = "list"
    data: list[Model]
    first_id: str
    last_id: str
    has_more: bool = False


async def models(state: ServerState, request: Request) -> Response:
    """Every name that a model answers to."""
    return json_response(
        ModelList(
            data=[_model(model, name, state.started) for model in state.models for name in model.names],
            first_id=state.models.names[0],
            last_id=state.models.names[-1],
        )
    )


async def model(state: ServerState, request: Request) -> Response:
    """One of these names, with what is known of its model."""
    name = request.path_params["model"]
    return json_response(_model(state.models.find(name), name, state.started))


def _model(model: ServedModel, name: str, started: int) -> Model:
    began = datetime.datetime.fromtimestamp(started, datetime.UTC)
    return Model(
        id=name,
        display_name=name,
        created_at=began.isoformat().replace("+00:00", "Z"),
        created=started,
        root=model.name,
        max_model_len=model.ready.max_model_len,
    )


API = Api(
    operations=(
        Operation(path="/v1/models", method="get", summary="The models served here.", handler=models, answer=ModelList),
        Operation(
            path="/v1/models/{model}",
            method="get",
            summary="One model.",
            handler=model,
            answer=Model,
            failures=(401, 404, 405, 500),
        ),
    )
)
