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
from homenode.server.models.served_model import ServedModel
from homenode.transfer.wire.message import PROTOCOL, Published, encode_documents, encode_published


class ReleaseRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /kv_transfer/release."""

    ticket: Ticket
    reason: Annotated[str, Meta(max_length=256)] | None = None


class KvReleased(Struct):
    """Answer of /kv_transfer/release, whether there was such a ticket or not."""

    ticket: str
    status: Literal["released"] = "released"


_FLAGS = {"sender": "do_remote_decode", "receiver": "do_remote_prefill"}
# A tuple whose entries are alike, without `prefixItems`, which not every reader of these documents gets right.
_VERSIONS = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2, "default": list(PROTOCOL)}
_decode_release = decode_as(ReleaseRequest, HINTS)


async def kv_transfer(state: ServerState, request: Request) -> Response:
    """Tell what the engine of a model, which the query may name, publishes about its part in handing KV over; 404 where
    it has none, 503 while the server takes no new requests.
    """
    name = request.query_params.get("model")
    if name is None and state.models.changes:
        text = "each of several models hands KV over for itself; ask for one of them, as /kv_transfer?model=NAME"
        raise ApiError(404, text, param="model", code="kv_transfer_off")
    model = state.models.find(name).model  # who only looks has nothing loaded
    document = published_of(model)
    state.check_available()
    if not (engines := model.client.engines):
        return Response(encode_published(document), media_type="application/json")
    there = [engine.published for engine in engines if engine.published is not None]
    if not there:
        raise ApiError(503, "no engine is there to hand KV over", code="engine_unavailable", retry_after_s=1)
    return Response(encode_documents(there), media_type="application/json")


async def release(state: ServerState, request: Request) -> Response:
    """Give a ticket up, wherever its hand-over stands. Any number of times."""
    models = [model for model in state.models if model.kv_transfer is not None]
    for model in models or ([] if state.models.changes else [state.models.first]):
        published_of(model)
    body = await read_json(state, request, _decode_release)
    for model in models:
        if (running := model.tickets.get(body.ticket)) is not None:
            model.client.abort(running)
        await model.client.release_kv(body.ticket, body.reason or "released")
    return json_response(KvReleased(body.ticket))


def published_of(model: ServedModel) -> Published:
    """Raises ApiError 404 when the model's engine hands no KV over."""
    if model.kv_transfer is None:
        raise ApiError(404, "this server hands no KV over; it was started without --pd-role", code="kv_transfer_off")
    return model.kv_transfer


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    """`kv_transfer_params` as this server takes them: a flag of the other part, or of any where it has none, can only
    be off.
    """
    components["Published"]["properties"]["protocol"] = _VERSIONS
    role = state.limits.kv_role
    working = {flag for role, flag in _FLAGS.items() if role in state.limits.kv_roles}
    params = components["KvTransferParams"]
    for flag in _FLAGS.values():
        if flag not in working:
            params["properties"][flag] = {"enum": [False, None], "default": None}
    if role is None:
        return
    works = _FLAGS[role]
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
            query={"model": {"type": "string"}},
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
