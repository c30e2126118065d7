"""GET /kv_transfer and POST /kv_transfer/release: what a server with a part in handing KV over tells and takes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.openai.requests import HINTS
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.kv_transfer import Ticket
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import read_json
from homenode.server.http.failures import ApiError
from homenode.transfer.setup import published
from homenode.transfer.setup.published import Published
from homenode.transfer.wire.message import PROTOCOL


class ReleaseRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /kv_transfer/release."""

    ticket: Ticket
    reason: Annotated[str, Meta(max_length=256)] | None = None


class KvReleased(Struct):
    """Answer of /kv_transfer/release, whether there was such a ticket or not."""

    ticket: str
    status: Literal["released"] = "released"


_FLAGS = ("do_remote_decode", "do_remote_prefill")
# A tuple whose entries are alike, without `prefixItems`, which not every reader of these documents gets right.
_VERSIONS = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2, "default": list(PROTOCOL)}
_decode_release = decode_as(ReleaseRequest, HINTS)


async def kv_transfer(state: ServerState, request: Request) -> Response:
    """Return what this server publishes about its part in handing KV over; 404 where it has none, 503 while it takes no
    new requests.
    """
    document = published_of(state)
    state.check_available()
    if not (engines := state.client.engines):
        return Response(published.encode(document), media_type="application/json")
    there = [engine.published for engine in engines if engine.published is not None]
    if not there:
        raise ApiError(503, "no engine is there to hand KV over", code="engine_unavailable", retry_after_s=1)
    return Response(published.encode_several(there), media_type="application/json")


async def release(state: ServerState, request: Request) -> Response:
    """Give a ticket up, wherever its hand-over stands. Any number of times."""
    published_of(state)
    body = await read_json(state, request, _decode_release)
    if (running := state.tickets.get(body.ticket)) is not None:
        state.client.abort(running)
    await state.client.release_kv(body.ticket, body.reason or "released")
    return json_response(KvReleased(body.ticket))


def published_of(state: ServerState) -> Published:
    """Raises ApiError 404 when this server hands no KV over."""
    if state.kv_transfer is None:
        raise ApiError(404, "this server hands no KV over; it was started without --pd-role", code="kv_transfer_off")
    return state.kv_transfer


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    """`kv_transfer_params` as this server takes them: a flag of the other part, or of any where it has none, can only
    be off.
    """
    components["Published"]["properties"]["protocol"] = _VERSIONS
    role = state.kv_transfer.role if state.kv_transfer is not None else None
    works = {"sender": "do_remote_decode", "receiver": "do_remote_prefill"}.get(role or "")
    params = components["KvTransferParams"]
    for flag in _FLAGS:
        if flag != works:
            params["properties"][flag] = {"enum": [False, None], "default": None}
    if works is None:
        return
    needed = {"ticket": {"type": "string"}}
    if role == "sender":
        params["properties"]["peer"]["anyOf"][0] = {
            "allOf": [params["properties"]["peer"]["anyOf"][0], {"properties": {"role": {"const": "receiver"}}}]
        }
        needed["peer"] = {"type": "object"}
    params.setdefault("allOf", []).append(
        {"anyOf": [{"properties": {works: {"enum": [False, None]}}}, {"properties": needed, "required": list(needed)}]}
    )


API = Api(
    operations=(
        Operation(
            path="/kv_transfer",
            method="get",
            summary="This server's part in handing KV over.",
            handler=kv_transfer,
            answer=Published,
            failures=(401, 404, 405, 500, 503),
            may_be_list=True,
        ),
        Operation(
            path="/kv_transfer/release",
            method="post",
            summary="Give up a hand-over of KV.",
            handler=release,
            answer=KvReleased,
            body=ReleaseRequest,
            failures=POST_FAILURES,  # taken while draining, too: it ends work
        ),
    ),
    tighten=_tighten,
)
