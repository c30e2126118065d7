"""GET /v1/models: the names that the served models answer to."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, Literal

from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.core.api import Api, Operation
from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import json_response
from homenode.server.keys.caller import caller
from homenode.server.models.served_model import ServedModel

if TYPE_CHECKING:
    from homenode.server.models.kept_model import KeptModel


class Model(Struct, kw_only=True):
    """A model that can be asked for. `max_model_len`: most tokens of prompt and answer together, null where that is not
    known before it is loaded. `aliases`: further names, and `status`: its state, its bytes, and where it is, on a
    server of several. `type`, `display_name` and `created_at` are for clients of the Anthropic API, which lists models
    at the same path.
    """

    id: str
    type: Literal["model"] = "model"
    display_name: str
    created_at: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "homenode"
    root: str
    max_model_len: int | None = None
    aliases: list[str] | UnsetType = UNSET
    status: dict[str, Any] | UnsetType = UNSET


class ModelList(Struct, kw_only=True):
    """Answer of /v1/models: all of them, whatever part a client of the Anthropic API asks for."""

    object: Literal["list"] = "list"
    data: list[Model]
    first_id: str
    last_id: str
    has_more: bool = False


async def models(state: ServerState, request: Request) -> Response:
    """Every name that a model answers to; on a server of several each model once, with its state."""
    if state.models.changes:
        return json_response(_list_kept(state))
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
    if state.models.changes:
        from homenode.server.core.several_models.kept import kept_models  # a server of one model starts sooner without

        return json_response(_kept(kept_models(state).find_kept(name), name, state.started))
    found = state.models.find(name)
    return json_response(_model(found.model, found.name, state.started))


def _list_kept(state: ServerState) -> ModelList:
    from homenode.server.core.several_models.kept import kept_models  # a server of one model starts sooner without

    allowed = set(caller().models)
    all_kept = kept_models(state).kept
    seen = [kept for kept in all_kept if not allowed or allowed & set(kept.planned.entry.names)]
    data = [_kept(kept, kept.name, state.started) for kept in seen]
    return ModelList(data=data, first_id=data[0].id if data else "", last_id=data[-1].id if data else "")


def _kept(kept: KeptModel, name: str, started: int) -> Model:
    from homenode.server.core.several_models.kept import status_of  # as above

    began = datetime.datetime.fromtimestamp(started, datetime.UTC)
    return Model(
        id=name,
        display_name=name,
        created_at=began.isoformat().replace("+00:00", "Z"),
        created=started,
        root=kept.name,
        max_model_len=kept.served.ready.max_model_len if kept.served is not None else None,
        aliases=list(kept.planned.entry.names[1:]),
        status=status_of(kept),
    )


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
