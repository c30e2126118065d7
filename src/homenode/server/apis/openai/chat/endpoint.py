"""POST /v1/chat/completions: a request becomes one of the generation core, whose events become chat completions."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.openai.chat.answer import ChatChunk, ChatCompletion, ChatFormat
from homenode.server.apis.openai.chat.request import ChatRequest
from homenode.server.apis.openai.messages import template_messages
from homenode.server.apis.openai.openapi import tighten_kv_transfer, tighten_sampling, tighten_template
from homenode.server.apis.openai.requests import HINTS, REMEDIES
from homenode.server.apis.openai.sampling import generation_request, sampling_of
from homenode.server.core.answer import respond
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.generation import Generation
from homenode.server.core.prompts import encode_chat
from homenode.server.core.request import begin, check_limits
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.exchange import read_json, unless_gone_early
from homenode.server.http.failures import ApiError

_decode = decode_as(ChatRequest, HINTS)


async def chat_completions(state: ServerState, request: Request) -> Response:
    """Answer the last message of a conversation."""
    body = await read_json(state, request, _decode)
    model = state.model(body.model)
    generation = await unless_gone_early(request, _begin(state, body))
    return await respond(
        state, request, generation, ChatFormat(state, body, model, generation), stream=bool(body.stream)
    )


async def _begin(state: ServerState, body: ChatRequest) -> Generation:
    """Raises ApiError 400, and UserError when the chat template refuses the messages."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "`top_logprobs` needs `logprobs`: true", param="top_logprobs", code="invalid_value")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    sampling = msgspec.structs.replace(sampling_of(body), logprobs=logprobs)
    check_limits(state, 1, sampling)
    prompt = await encode_chat(
        state,
        template_messages(body.messages),
        template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final=bool(body.continue_final_message),
        add_special_tokens=body.add_special_tokens,
    )
    return await begin(state, generation_request(body, (prompt,), sampling, _max_tokens(body)))


def _max_tokens(body: ChatRequest) -> int | None:
    """The most tokens of an answer, whose limit has two names here and is never 0. Raises ApiError 400."""
    for param, asked in (("max_completion_tokens", body.max_completion_tokens), ("max_tokens", body.max_tokens)):
        if asked == 0:
            raise ApiError(400, f"`{param}`: expected `int` >= 1; {REMEDIES[param]}", param=param, code="invalid_value")
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    schema = components[ChatRequest.__name__]
    tighten_sampling(schema, state)
    tighten_template(schema)
    schema.setdefault("allOf", []).append(
        {
            "anyOf": [
                {"properties": {"top_logprobs": {"type": "null"}}},
                {"properties": {"logprobs": {"const": True}}, "required": ["logprobs"]},
            ]
        }
    )
    tighten_kv_transfer(schema, state)


API = Api(
    operations=(
        Operation(
            path="/v1/chat/completions",
            method="post",
            summary="Answer a conversation.",
            handler=chat_completions,
            answer=ChatCompletion,
            body=ChatRequest,
            streams=ChatChunk,
            failures=POST_FAILURES,
            admits=True,
        ),
    ),
    tighten=_tighten,
)
