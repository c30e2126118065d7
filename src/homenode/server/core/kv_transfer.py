"""Prefill and decode apart, as a request asks for it: what `kv_transfer_params` mean, for every API that has that
field.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

from homenode.server.http.failures import ApiError
from homenode.server.models.served_model import ServedModel
from homenode.transfer.scheduler_events import KvTicket
from homenode.transfer.wire.message import Published, encode_published
from homenode.units import format_count

_PARAM = "kv_transfer_params"

Ticket = Annotated[str, Meta(pattern="^[A-Za-z0-9._:-]{1,128}$")]


class KvTransferParams(Struct, forbid_unknown_fields=True, kw_only=True):
    """The way in which the prompt's KV is handed over: computed here for another server, or taken from one. Given by
    the proxy.
    """

    do_remote_decode: bool | None = None  # this server computes the prompt, for `peer`
    do_remote_prefill: bool | None = None  # another server computes it, and hands it over under the ticket
    ticket: Ticket | None = None  # the same on both sides, of one request only
    # what the other side answers to GET /kv_transfer; of several engines there, the one that is to have the KV
    peer: Published | None = None
    # at a receiver of several engines: the incarnation of that one
    engine: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")] | None = None


class KvTransferResult(Struct, kw_only=True):
    """The result that came of a hand-over that was asked for.

    `tokens`: prompt tokens whose keys and values the other side gets under `ticket`. `status`: `computed`, or `nothing`
    where there is nothing to hand over and the ticket need not be given on.
    """

    ticket: str
    tokens: int
    status: Literal["computed", "nothing"]


class RequestKvTransfer(NamedTuple):
    """The part of a request that concerns its KV. `ticket` is None where nothing is left to hand over."""

    ticket: KvTicket | None
    result: KvTransferResult | None  # for the answer, at the sender


def kv_transfer_of(
    model: ServedModel, params: KvTransferParams | None, *, prompts: int, tokens: int, single: bool
) -> RequestKvTransfer | None:
    """Return what `params` ask for, for a request of `prompts` prompts, the first of `tokens` tokens; None when for
    nothing.

    `single`: one answer is asked for, and not as a stream. Raises ApiError 400 when this server has not that part, and
    for what cannot be together.
    """
    if params is None or not (params.do_remote_decode or params.do_remote_prefill):
        return None
    if params.do_remote_decode and params.do_remote_prefill:
        raise _refused("`do_remote_decode` and `do_remote_prefill` exclude each other: a server has one part")
    sends = bool(params.do_remote_decode)
    _check_role(model, "sender" if sends else "receiver")
    if params.ticket is None:
        raise _refused("`ticket` is missing: the hand-over needs a name that both servers are told", "ticket")
    if prompts > 1:
        raise _refused(
            f"one prompt has one ticket, and the request has {format_count(prompts, 'prompt')}; send them one by one"
        )
    if sends:
        return _to_send(params, params.ticket, tokens, single=single)
    return RequestKvTransfer(KvTicket(params.ticket, sends=False, engine=params.engine or ""), None)


def _to_send(params: KvTransferParams, ticket: str, tokens: int, *, single: bool) -> RequestKvTransfer:
    if params.peer is None:
        raise _refused("`peer` is missing: whom the KV is for, as GET /kv_transfer of that server tells", "peer")
    if params.peer.role != "receiver":
        raise _refused(f"`peer` is a {params.peer.role}; KV is handed to a receiver", "peer")
    if not single:
        raise _refused("a request with `do_remote_decode` gets no tokens: leave `stream` and `n` out")
    if tokens < 2:  # the last token's position is computed by the receiver
        return RequestKvTransfer(None, KvTransferResult(ticket=ticket, tokens=0, status="nothing"))
    result = KvTransferResult(ticket=ticket, tokens=tokens - 1, status="computed")
    return RequestKvTransfer(KvTicket(ticket, sends=True, peer=encode_published(params.peer)), result)


def _check_role(model: ServedModel, role: Literal["sender", "receiver"]) -> None:
    field = "do_remote_decode" if role == "sender" else "do_remote_prefill"
    document = model.kv_transfer
    if document is None:
        raise _refused(
            f"`{field}` needs a {role}; this server hands no KV over (it was started without --pd-role)", field
        )
    if document.role != role:
        raise _refused(f"`{field}` needs a {role}; this server is a {document.role} (--pd-role)", field)


def _refused(message: str, field: str = "") -> ApiError:
    param = f"{_PARAM}.{field}" if field else _PARAM
    return ApiError(400, f"`{_PARAM}`: {message}", param=param, code="invalid_value")
