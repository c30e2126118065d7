"""Responses that are kept: looked at, and removed."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.responses.background import UNFINISHED, as_it_is, cancelled, status_of
from homenode.server.apis.responses.history import stored_response
from homenode.server.core.response_store import StoredResponse
from homenode.server.core.state import ServerState
from homenode.server.http.endpoint import json_response
from homenode.server.http.failures import ApiError
from homenode.server.http.listing import Page, page_of

MOST_ITEMS, ITEMS = 100, 20  # in one answer: the most, and where nothing is said
ResponseItems: TypeAlias = Page[Any]  # what a response was an answer to


class ResponseDeleted(Struct, kw_only=True):
    """Answer of DELETE /v1/responses/{response_id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class _Id(Struct):
    id: str


async def retrieve_response(state: ServerState, request: Request) -> Response:
    """A response as it was answered."""
    stored = await _stored(state, request)
    if request.query_params.get("stream") == "true":
        text = "`stream`: a response that is kept comes whole; leave `stream` out"
        raise ApiError(400, text, param="stream", code="unsupported_parameter")
    id = str(request.path_params["response_id"])
    return Response(bytes(await as_it_is(state, id, stored)), media_type="application/json")


async def delete_response(state: ServerState, request: Request) -> Response:
    """Keep a response no longer."""
    await _stored(state, request)
    id = str(request.path_params["response_id"])
    await state.responses.remove(id)
    return json_response(ResponseDeleted(id=id))


async def cancel_response(state: ServerState, request: Request) -> Response:
    """End a response that is being made in the background; one that has ended stays as it is."""
    stored, id = await _stored(state, request), str(request.path_params["response_id"])
    about = status_of(stored)
    if not about.background:
        text = (
            "only a response in the background can be cancelled; another one is by closing the connection of its "
            "request"
        )
        raise ApiError(400, text, param="response_id", code="invalid_value")
    ended = await cancelled(state, id, stored) if about.status in UNFINISHED else stored.response
    return Response(bytes(ended), media_type="application/json")


async def list_input_items(state: ServerState, request: Request) -> Response:
    """A page of what a response was an answer to, newest first unless `order` is asc."""
    items = (await _stored(state, request)).items[::-1]
    page: ResponseItems = page_of(request, items, _id_of, shown=lambda item: item, most=MOST_ITEMS, usual=ITEMS)
    return json_response(page)


def _id_of(item: Raw) -> str:
    return msgspec.json.decode(item, type=_Id).id


async def _stored(state: ServerState, request: Request) -> StoredResponse:
    """The response that the path names. Raises ApiError 404."""
    id = str(request.path_params["response_id"])
    stored = await stored_response(state, id)
    if stored is None:
        text = f"the response {id[:100]!r} is not here: it was not stored, was deleted, or had to give way to others"
        raise ApiError(404, text, param="response_id", code="response_not_found")
    return stored
