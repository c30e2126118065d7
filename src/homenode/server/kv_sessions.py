"""POST /kv_sessions/release: a named session whose KV need not stay on disk any more."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.engine.request import session_ticket
from homenode.server.apis.openai.requests import HINTS
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import read_json
from homenode.server.keys.caller import caller


class SessionRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /kv_sessions/release: the session as requests named it, with the salt that they had."""

    session: Annotated[str, Meta(min_length=1, max_length=128)]
    cache_salt: Annotated[str, Meta(max_length=128)] | None = None


class SessionReleased(Struct):
    """Answer of /kv_sessions/release, whether there was such a session or not."""

    session: str
    status: Literal["released"] = "released"


_decode = decode_as(SessionRequest, HINTS)


async def release_session(state: ServerState, request: Request) -> Response:
    """Let the KV of a session be given up like all other, in all engines of all models. Any number of times."""
    body = await read_json(state, request, _decode)
    ticket = session_ticket(caller().name, body.cache_salt or "", body.session)
    for model in state.models:
        await model.client.release_kv(ticket, "released")
    return json_response(SessionReleased(body.session))


API = Api(
    operations=(
        Operation(
            path="/kv_sessions/release",
            method="post",
            summary="Let the KV of a named session be given up.",
            handler=release_session,
            answer=SessionReleased,
            body=SessionRequest,
            failures=POST_FAILURES,  # taken while draining, too: it ends work
        ),
    ),
)
