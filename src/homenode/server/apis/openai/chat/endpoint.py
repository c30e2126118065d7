"""POST /v1/chat/completions, and POST /apply-template, which takes the same body."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.openai.chat.answer import ChatChunk, ChatCompletion, ChatFormat
from homenode.server.apis.openai.chat.conversation import chat_tools, conversation_of
from homenode.server.apis.openai.chat.request import ChatRequest
from homenode.server.apis.openai.chat_messages import ToolCall
from homenode.server.apis.openai.openapi import (
    GIVEN_TOOL,
    HISTORY_CALL,
    tighten_known,
    tighten_kv_transfer,
    tighten_messages,
    tighten_sampling,
    tighten_template,
    tighten_tools,
)
from homenode.server.apis.openai.requests import HINTS
from homenode.server.apis.openai.structured_openapi import tighten_structured
from homenode.server.apis.openai.tools import ToolDefinition
from homenode.server.core.answer import respond_conversation
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.conversation import (
    ConversationRequest,
    begin_conversation,
    conversation_grammar,
    conversation_text,
)
from homenode.server.core.pooling import generates
from homenode.server.core.request import check_limits
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.exchange import unless_gone_early
from homenode.server.http.ignored import note_left_out, note_not_kept
from homenode.server.models.model_table import read_for_model
from homenode.server.models.served_model import ServedModel
from homenode.server.models.text_work import memory_of


class AppliedTemplate(Struct):
    """Answer of /apply-template."""

    prompt: str
    token_ids: list[int]


_decode = decode_as(ChatRequest, HINTS)


async def chat_completions(state: ServerState, request: Request) -> Response:
    """Answer the last message of a conversation."""
    body, asked_model = await read_for_model(state, request, _decode)
    model = asked_model.model
    tools = chat_tools(request, body)
    asked = await unless_gone_early(request, conversation_of(model, request, body, tools))
    conversation = await unless_gone_early(request, begin_conversation(asked_model, asked))
    custom = frozenset(name for name, tool in tools.items() if tool.custom)
    answer = ChatFormat(model, asked_model.name, body, conversation, custom)
    return await respond_conversation(state, request, conversation, answer, stream=bool(body.stream))


async def apply_template(state: ServerState, request: Request) -> Response:
    """Return what the model would see of a conversation, text and tokens; nothing is generated."""
    body, asked_model = await read_for_model(state, request, _decode)
    model = asked_model.model
    asked = await unless_gone_early(request, conversation_of(model, request, body, chat_tools(request, body)))
    check_limits(model, 1, asked.sampling)
    answer = await unless_gone_early(request, _applied(model, request, asked))
    return Response(answer, media_type="application/json")


async def _applied(model: ServedModel, request: Request, asked: ConversationRequest) -> bytes:
    text = await conversation_text(model, asked)
    note_left_out(request, text.left_out)
    grammar = await conversation_grammar(model, asked, text.text)  # what a chat would refuse is refused here, too
    note_not_kept(request, grammar.left_out if grammar else ())
    if text.media:
        from homenode.server.core.media.media_prompts import encode_media

        text = text._replace(text=(await encode_media(model, text.text, text.media)).text)
    ids: list[int] = []
    async with model.text_work.reserve(memory_of(text.text)):
        encoded = model.tokenizer.encode_chat_pieces(text.text, asked.add_special_tokens, text.hidden)
        async with aclosing(model.text_work.each(encoded)) as pieces:
            async for piece in pieces:
                ids += piece
    return await model.text_work.run(lambda: msgspec.json.encode(AppliedTemplate(text.shown, ids)), len(ids))


def _tighten(components: dict[str, Any], state: ServerState) -> None:
    schema = components[ChatRequest.__name__]
    tighten_sampling(schema, state)
    tighten_template(schema)
    tighten_tools(schema)
    tighten_messages(components)
    tighten_structured(components, schema)
    for name in ("max_tokens", "max_completion_tokens"):
        schema["properties"][name]["anyOf"][0]["not"] = {"const": 0}
    components[ToolDefinition.__name__]["allOf"] = [GIVEN_TOOL]
    components[ToolCall.__name__]["anyOf"] = HISTORY_CALL
    schema.setdefault("allOf", []).append(
        {
            "anyOf": [
                {"properties": {"top_logprobs": {"enum": [0, None]}}},
                {"properties": {"logprobs": {"const": True}}, "required": ["logprobs"]},
            ]
        }
    )
    tighten_kv_transfer(schema, state)
    if state.config.strict_requests:
        tighten_known(components, schema, state)


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
            documented=generates,
        ),
        Operation(
            path="/apply-template",
            method="post",
            summary="What the model sees of a conversation.",
            handler=apply_template,
            answer=AppliedTemplate,
            body=ChatRequest,
            failures=POST_FAILURES,
            admits=True,
            documented=generates,
        ),
    ),
    tighten=_tighten,
)
