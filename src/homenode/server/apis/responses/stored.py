"""Responses that are kept: looked at, and removed."""

from __future__ import annotations

from typing import Any, Literal

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

_MOST_LISTED, _LISTED = 100, 20  # items in one answer: the most, and where nothing is said


class ResponseDeleted(Struct, kw_only=True):
    """Answer of DELETE /v1/responses/{response_id}."""

    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ResponseItems(Struct, kw_only=True):
    """A page of the items that a response was an answer to. `has_more`: more pages follow behind `last_id`."""

    object: Literal["list"] = "list"
    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool


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
    stored, query = await _stored(state, request), request.query_params
    limit, order = _limit(query.get("limit")), query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ApiError(400, "`order`: expected 'asc' or 'desc'", param="order", code="invalid_value")
    items: list[Raw] = stored.items if order == "asc" else stored.items[::-1]
    ids = [msgspec.json.decode(item, type=_Id).id for item in items]
    begin = 0
    if (after := query.get("after")) is not None:
        if after not in ids:
            raise ApiError(400, f"`after`: there is no item {after[:100]!r}", param="after", code="invalid_value")
        begin = ids.index(after) + 1
    page, shown = items[begin : begin + limit], ids[begin : begin + limit]
    more = begin + limit < len(items)
    first, last = (shown[0], shown[-1]) if shown else (None, None)
    return json_response(ResponseItems(data=page, first_id=first, last_id=last, has_more=more))


def _limit(given: str | None) -> int:
    if given is None:
        return _LISTED
    if not given.isascii() or not given.isdecimal() or len(given) > 4 or not 1 <= int(given) <= _MOST_LISTED:
        raise ApiError(400, f"`limit`: expected a number from 1 to {_MOST_LISTED}", param="limit", code="invalid_value")
    return int(given)


async def _stored(state: ServerState, request: Request) -> StoredResponse:
    """The response that the path names. Raises ApiError 404."""
    id = str(request.path_params["response_id"])
    stored = await stored_response(state, id)
    if stored is None:
        text = f"the response {id[:100]!r} is not here: it was not stored, was deleted, or had to give way to others"
        raise ApiError(404, text, param="response_id", code="response_not_found")
    return stored
