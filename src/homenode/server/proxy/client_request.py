"""The wishes of a client's request, as far as routing depends on it; and the bodies that go to the servers. Pure.

Nothing is checked here that the servers check: a body that cannot be read goes to a decode server as it is, which says
what is wrong with it.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import msgspec

from homenode.server.core.generation_fields import ServiceTierField
from homenode.server.http.failures import ApiError
from homenode.server.http.json_size import SMALL_BODY, check_json_size
from homenode.server.keys.caller import KeyHolder
from homenode.server.keys.service_tiers import AskedTier
from homenode.server.proxy.forwarded_apis import (
    CHAT_COMPLETIONS,
    COMPLETIONS,
    MESSAGES,
    RESPONSES,
    ForwardedApi,
    value_of,
)

_PARAMS, _EMBEDS = "kv_transfer_params", "prompt_embeds"
_TIER, _PRIORITY = "service_tier", "priority"
_ASKED: Mapping[str, AskedTier] = {
    **{tier: tier for tier in get_args(ServiceTierField)},
    "standard_only": "standard",
}
_TOLD = frozenset({None, "max_tokens", "infill"})  # reasons why prompts are no other work than their tokens say
_MEDIA_PART = re.compile(
    rb'"type"\s*:\s*"(?:(?:input_|output_)?(?:image|audio|video|file)(?:_url|_embeds)?|computer_screenshot|document'
    rb'|container_upload|item_reference)"|"images"\s*:\s*\[\s*"'
)
_NOT_FOR_PREFILL = frozenset({"stream", "stream_options", _PARAMS})

_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class ClientRequest:
    """`direct`: why it is not handed over, None: it is. `units`, `tokens`, `salt`: what `routing.LoadTable.prompt`
    takes. `goes_on_from`: the id of a response that one of the decode servers keeps. `model`: that it names. `told`:
    its tokens tell the work that its prompt is.
    """

    body: bytes
    direct: str | None
    api: ForwardedApi = CHAT_COMPLETIONS
    stream: bool = False
    fields: Mapping[str, msgspec.Raw] | None = None
    units: Sequence[int] = ()
    tokens: int = 0
    salt: str = ""
    goes_on_from: str | None = None
    model: str | None = None
    told: bool = False

    def for_prefill(self, ticket: str, peer: bytes) -> bytes:
        """The body for a prefill server. `peer`: what the decode server publishes, as JSON."""
        kept = {name: value for name, value in (self.fields or {}).items() if name not in _NOT_FOR_PREFILL}
        params = {"do_remote_decode": True, "ticket": ticket, "peer": msgspec.Raw(peer)}
        return msgspec.json.encode({**kept, **self.api.unstreamed, _PARAMS: params})

    def for_decode(self, ticket: str | None, engine: str | None = None) -> bytes:
        """The body for a decode server: the client's, with the ticket if there is one. `engine`: of several there, the
        one that has the KV.
        """
        if ticket is None:
            return self.body
        kept = {name: value for name, value in (self.fields or {}).items() if name != _PARAMS}
        of_several = {} if engine is None else {"engine": engine}
        return msgspec.json.encode({**kept, _PARAMS: {"do_remote_prefill": True, "ticket": ticket, **of_several}})

    def ranked(self, who: KeyHolder) -> ClientRequest:
        """The request with the rank that the key of `who` gives it; the servers may not know that key. Raises
        ServiceTierError.
        """
        if self.fields is None or not who.has_tiers:
            return self
        said, number = value_of(self.fields, _TIER), value_of(self.fields, _PRIORITY)
        if isinstance(number, float) and number.is_integer():
            number = int(number)
        if not isinstance(said, str | None) or not (number is None or type(number) is int):
            return self  # the servers refuse it
        if said is not None and said not in _ASKED:
            return self
        rank = who.rank(None if said is None else _ASKED[said], number)
        kept = {name: value for name, value in self.fields.items() if name not in (_TIER, _PRIORITY)}
        kept |= {_PRIORITY: _raw(rank.priority)}
        if said is not None and self.api is not MESSAGES:
            kept |= {_TIER: _raw(rank.tier)}
        return replace(self, body=msgspec.json.encode(kept), fields=kept)

    def forgotten(self) -> ClientRequest:
        """Without the body: an answer may take long, and bodies may be large."""
        return replace(self, body=b"", fields=None, units=())


def read_client_request(body: bytes, api: ForwardedApi) -> ClientRequest:
    """The body of a request of `api`. Raises ApiError 400 for a body that holds too much, and for a client that brings
    a ticket of its own.

    Whoever knows a ticket can take or end somebody's hand-over.
    """
    body = body.removeprefix(codecs.BOM_UTF8)
    if len(body) > SMALL_BODY:
        check_json_size(body)
    try:
        fields = _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ClientRequest(body, "unreadable", api)
    if value_of(fields, _PARAMS) is not None:
        raise ApiError(400, f"`{_PARAMS}` is set by the proxy; leave it out", param=_PARAMS, code="invalid_value")
    stream = api.streams(value_of(fields, "stream"))
    previous = value_of(fields, "previous_response_id") if api is RESPONSES else None
    goes_on_from = previous if isinstance(previous, str) else None
    prompts, units, tokens = api.prompt_units(fields)
    direct = "unreadable" if not prompts else "prompts" if prompts > 1 else _direct(fields)
    direct = direct or api.direct
    if api is COMPLETIONS and value_of(fields, _EMBEDS) is not None:
        direct = _EMBEDS  # rows may take megabytes, which would be sent and read twice
    if goes_on_from is not None:
        direct = "previous_response"  # a prefill server does not know what is before
    named = value_of(fields, "model")
    model = named if isinstance(named, str) else None
    told = direct in _TOLD and not _has_more_than_text(fields)
    return ClientRequest(
        body, direct, api, stream, fields, units, tokens, _salt(fields, api), goes_on_from, model, told
    )


def _has_more_than_text(fields: Mapping[str, msgspec.Raw]) -> bool:
    """Return whether there are pictures and the like, whose bytes say nothing of their work, or what was said before is
    not in the request.
    """
    return any(_MEDIA_PART.search(bytes(fields.get(name, b""))) for name in ("messages", "input")) or any(
        value_of(fields, name) for name in ("images", "context", "conversation")
    )


def _raw(value: int | str) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _direct(fields: Mapping[str, msgspec.Raw]) -> str | None:
    """Return why a request with one prompt is computed where it is decoded."""
    if _more_than(value_of(fields, "n"), 1) or _more_than(value_of(fields, "best_of"), 1):
        return "n"  # one sequence can take a ticket; the others would wait or compute the prompt themselves
    if value_of(fields, "prompt_logprobs") is not None or (
        value_of(fields, "echo") is True and value_of(fields, "logprobs") is not None
    ):
        return "prompt_logprobs"  # these need every prompt token's logits, not only its keys and values
    names = ("max_completion_tokens", "max_tokens", "max_output_tokens")
    limit = next((value for name in names if (value := value_of(fields, name)) is not None), None)
    if limit not in (None, -1) and not _more_than(limit, 1):  # -1: no limit
        return "max_tokens"  # nothing is decoded after the token that the prompt's last position gives
    return None


def _salt(fields: Mapping[str, msgspec.Raw], api: ForwardedApi) -> str:
    """The fields besides the text that make prompts of equal text different in a prefix cache."""
    names = ("model", "cache_salt", "chat_template_kwargs", "add_special_tokens", "tools", "functions")
    kinds = itertools.chain((api.name,), (bytes(fields.get(name, b"")) for name in names))
    return b"\0".join(kinds).decode("utf-8", "surrogateescape")


def _more_than(value: Any, limit: int) -> bool:
    return isinstance(value, int | float) and value > limit
