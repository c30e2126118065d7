"""Prefill and decode apart, as HTTP sees it: /kv_transfer, /kv_transfer/release, and what `kv_transfer_params` mean in a request."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.openai.requests import HINTS, KvTransferParams, ReleaseRequest, Sampling
from homenode.server.apis.openai.responses import KvReleased, KvTransferResult
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.exchange import read_json
from homenode.server.http.failures import ApiError
from homenode.transfer import published
from homenode.transfer.published import Published
from homenode.transfer.seam import KvTicket
from homenode.units import format_count

_PARAM = "kv_transfer_params"
_decode_release = decode_as(ReleaseRequest, HINTS)


class RequestKvTransfer(NamedTuple):
    """The part of a request that concerns its keys and values. `ticket` is None where nothing is left to hand over."""

    ticket: KvTicket | None
    result: KvTransferResult | None  # for the answer, at the sender


async def kv_transfer(state: ServerState, request: Request) -> Response:
    """What this server publishes about its part in handing KV over; 404 where it has none, 503 while it takes no new requests."""
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
        await state.client.abort(running)
    await state.client.release_kv(body.ticket, body.reason or "released")
    return Response(msgspec.json.encode(KvReleased(body.ticket)), media_type="application/json")


def published_of(state: ServerState) -> Published:
    """Raises ApiError 404 when this server hands no KV over."""
    if state.kv_transfer is None:
        raise ApiError(404, "this server hands no KV over; it was started without --pd-role", code="kv_transfer_off")
    return state.kv_transfer


def hand_over(state: ServerState, body: Sampling, prompts: int, tokens: int) -> RequestKvTransfer | None:
    """What `kv_transfer_params` ask for, for a request of `prompts` prompts, the first of `tokens` tokens; None when for nothing.

    Raises ApiError 400 when this server has not that part, and for what cannot be together.
    """
    params = body.kv_transfer_params
    if params is None or not (params.do_remote_decode or params.do_remote_prefill):
        return None
    if params.do_remote_decode and params.do_remote_prefill:
        raise _refused("`do_remote_decode` and `do_remote_prefill` exclude each other: a server has one part")
    sends = bool(params.do_remote_decode)
    _check_role(state, sends)
    if params.ticket is None:
        raise _refused("`ticket` is missing: the hand-over needs a name that both servers are told", "ticket")
    if prompts > 1:
        raise _refused(
            f"one prompt has one ticket, and the request has {format_count(prompts, 'prompt')}; send them one by one"
        )
    return (
        _sent(body, params, params.ticket, tokens)
        if sends
        else RequestKvTransfer(KvTicket(params.ticket, sends=False, engine=params.engine or ""), None)
    )


def _sent(body: Sampling, params: KvTransferParams, ticket: str, tokens: int) -> RequestKvTransfer:
    if params.peer is None:
        raise _refused("`peer` is missing: whom the KV is for, as GET /kv_transfer of that server tells", "peer")
    if params.peer.role != "receiver":
        raise _refused(f"`peer` is a {params.peer.role}; KV is handed to a receiver", "peer")
    if body.stream or (body.n or 1) > 1:
        raise _refused("a request with `do_remote_decode` gets no tokens: leave `stream` and `n` out")
    if tokens < 2:  # the last token's position is computed by the receiver
        return RequestKvTransfer(None, KvTransferResult(ticket=ticket, tokens=0, status="nothing"))
    result = KvTransferResult(ticket=ticket, tokens=tokens - 1, status="computed")
    return RequestKvTransfer(KvTicket(ticket, sends=True, peer=published.encode(params.peer)), result)


def _check_role(state: ServerState, sends: bool) -> None:
    wanted = "sender" if sends else "receiver"
    field = "do_remote_decode" if sends else "do_remote_prefill"
    document = state.kv_transfer
    if document is None:
        raise _refused(
            f"`{field}` needs a {wanted}; this server hands no KV over (it was started without --pd-role)", field
        )
    if document.role != wanted:
        raise _refused(f"`{field}` needs a {wanted}; this server is a {document.role} (--pd-role)", field)


def _refused(message: str, field: str = "") -> ApiError:
    param = f"{_PARAM}.{field}" if field else _PARAM
    return ApiError(400, f"`{_PARAM}`: {message}", param=param, code="invalid_value")
