"""POST /tokenize, POST /detokenize and GET /tokenizer_info: the model's tokenizer for clients that have none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.openai.chat_messages import Messages, goes_on, template_messages
from homenode.server.apis.openai.openapi import tighten_model, tighten_names, tighten_template, token_schema
from homenode.server.apis.openai.requests import HINTS
from homenode.server.apis.openai.tools import Tools, given_tools, tool_offer
from homenode.server.core import prompts
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.conversation import ConversationRequest, conversation_text
from homenode.server.core.generation_fields import TokenIds
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import unless_gone_early
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_left_out
from homenode.server.models.model_table import read_for_model
from homenode.server.models.served_model import ServedModel
from homenode.server.models.text_work import SHORT_TEXT, memory_of

_FEW_TOKENS = 4096
_GIVEN = {"prompt": "string", "content": "string", "messages": "array"}  # one of them is given
_TOKEN_BYTES = 64  # of memory for each token while a text is made of them


class TokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /tokenize: a text, as `prompt` or as `content`, or `messages`. Of `content`, as llama.cpp calls it,
    special tokens are added only where `add_special` says so."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    add_special: bool | None = None  # of `content`
    messages: Messages | None = None
    tools: Tools | None = None  # with messages
    add_special_tokens: bool | None = None  # default: true for a prompt, false for messages
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /detokenize."""

    tokens: TokenIds
    model: str | None = None
    skip_special_tokens: bool | None = None  # default: false


class Tokenized(Struct, kw_only=True):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(Struct):
    """Answer of /detokenize."""

    prompt: str


_decode_tokenize = decode_as(TokenizeRequest, HINTS)
_decode_detokenize = decode_as(DetokenizeRequest, HINTS)


async def tokenize(state: ServerState, request: Request) -> Response:
    """Token ids of a text or of a conversation."""
    body, asked_model = await read_for_model(state, request, _decode_tokenize)
    model = asked_model.model
    answer = await unless_gone_early(request, _tokenized(model, request, body))
    return Response(answer, media_type="application/json")


async def _tokenized(model: ServedModel, request: Request, body: TokenizeRequest) -> bytes:
    prompt = await _prompt_text(model, request, body)
    written = _Written(model, bool(body.return_token_strs))
    async with model.text_work.reserve(memory_of(prompt.text)):
        pieces = map(written.add, _encoded(model, body, prompt))
        if len(prompt.text) <= SHORT_TEXT and prompt.hidden is None:
            list(pieces)
        else:
            async with aclosing(model.text_work.each(pieces)) as counted:
                async for _ in counted:
                    pass
    return await model.text_work.run(written.answer, written.count)


def _encoded(model: ServedModel, body: TokenizeRequest, prompt: prompts.PromptText) -> Iterator[list[int]]:
    if body.prompt is not None:
        return model.tokenizer.encode_pieces(prompt.text, body.add_special_tokens is not False, prompt.hidden)
    if body.content is not None:
        special = body.add_special if body.add_special_tokens is None else body.add_special_tokens
        return model.tokenizer.encode_pieces(prompt.text, bool(special), prompt.hidden)
    return model.tokenizer.encode_chat_pieces(prompt.text, body.add_special_tokens, prompt.hidden)


async def detokenize(state: ServerState, request: Request) -> Response:
    """Text of token ids, special tokens included unless they are to be skipped."""
    body, asked_model = await read_for_model(state, request, _decode_detokenize)
    model = asked_model.model

    def answer() -> bytes:
        prompts.check_token_ids(model, body.tokens, "tokens")
        text = model.tokenizer.decode(body.tokens, skip_special_tokens=bool(body.skip_special_tokens))
        return msgspec.json.encode(Detokenized(text))

    if len(body.tokens) <= _FEW_TOKENS:
        return Response(answer(), media_type="application/json")
    async with state.text_work.reserve(_TOKEN_BYTES * len(body.tokens)):
        return Response(await state.text_work.run(answer), media_type="application/json")


async def tokenizer_info(state: ServerState, request: Request) -> Response:
    """Special tokens, chat template and sizes of the model that the query names."""
    model = (await state.models.obtain(request, request.query_params.get("model"))).model
    facts = {
        "bos_token": None,
        "eos_token": None,
        "pad_token": None,
        "max_model_len": model.ready.max_model_len,
        **model.tokenizer.info(),
    }
    return json_response(facts)


class _Written:
    """The answer of /tokenize as it grows. A text may have millions of tokens: they are kept as JSON."""

    def __init__(self, model: ServedModel, with_texts: bool) -> None:
        self._model = model
        self.count = 0
        self._ids: list[bytes] = []
        self._texts: list[bytes] | None = [] if with_texts else None

    def add(self, ids: list[int]) -> int:
        """Add the next tokens; how many they are."""
        self.count += len(ids)
        if ids:
            self._ids.append(msgspec.json.encode(ids)[1:-1])
        if ids and self._texts is not None:
            self._texts.append(msgspec.json.encode([self._model.tokenizer.token_text(token) for token in ids])[1:-1])
        return len(ids)

    def answer(self) -> bytes:
        """The whole body."""
        answer = Tokenized(
            count=self.count,
            max_model_len=self._model.ready.max_model_len,
            tokens=_json_list(self._ids),  # type: ignore[arg-type]  # encoded as it is
            token_strs=None if self._texts is None else _json_list(self._texts),  # type: ignore[arg-type]
        )
        return msgspec.json.encode(answer)


def _json_list(parts: list[bytes]) -> msgspec.Raw:
    return msgspec.Raw(b"[" + b",".join(parts) + b"]")


async def _prompt_text(model: ServedModel, request: Request, body: TokenizeRequest) -> prompts.PromptText:
    prompts.check_ending(body.continue_final_message, body.add_generation_prompt)
    if sum(given is not None for given in (body.prompt, body.content, body.messages)) != 1:
        message = "give one of `prompt`, `content` (the same text by llama.cpp's name) and `messages`"
        raise ApiError(400, message, param="prompt", code="invalid_value")
    offer = tool_offer(given_tools(request, body.tools), None, None)  # looked at beside a text as well
    if body.prompt is not None or body.content is not None:
        return prompts.PromptText(body.prompt or body.content or "")
    assert body.messages is not None
    asked = ConversationRequest(
        messages=template_messages(request, body.messages, taken=model.taken),
        offer=offer,
        template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final=bool(body.continue_final_message)
        or goes_on(body.messages, turn_begins=body.add_generation_prompt),
    )
    text = await conversation_text(model, asked)
    note_left_out(request, text.left_out)
    if text.media:
        from homenode.server.core.media.media_prompts import encode_media

        text = text._replace(text=(await encode_media(model, text.text, text.media)).text)
    return text


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    tokenize_schema, detokenize_schema = (components[t.__name__] for t in (TokenizeRequest, DetokenizeRequest))
    tighten_model(tokenize_schema, state)
    tighten_model(detokenize_schema, state)
    tighten_template(tokenize_schema)
    if state.config.strict_requests:
        tighten_names(tokenize_schema, "tools")
    detokenize_schema["properties"]["tokens"]["items"] = token_schema(state)
    tokenize_schema["oneOf"] = [
        {
            "required": [given],
            "properties": {given: {"type": kind}} | {name: {"type": "null"} for name in _GIVEN if name != given},
        }
        for given, kind in _GIVEN.items()
    ]


API = Api(
    operations=(
        Operation(
            path="/tokenizer_info",
            method="get",
            summary="Special tokens and chat template.",
            handler=tokenizer_info,
            answer=dict,
            failures=(401, 404, 405, 500),
            query={"model": {"type": "string"}},
        ),
        Operation(
            path="/tokenize",
            method="post",
            summary="Token ids of a text or a conversation.",
            handler=tokenize,
            answer=Tokenized,
            body=TokenizeRequest,
            failures=POST_FAILURES,
            admits=True,
        ),
        Operation(
            path="/detokenize",
            method="post",
            summary="Text of token ids.",
            handler=detokenize,
            answer=Detokenized,
            body=DetokenizeRequest,
            failures=POST_FAILURES,
            admits=True,
        ),
    ),
    tighten=_tighten,
)
