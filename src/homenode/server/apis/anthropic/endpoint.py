"""POST /v1/messages and POST /v1/messages/count_tokens."""

from __future__ import annotations

from functools import partial

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.anthropic.answer import (
    MESSAGES_EVENTS,
    PING,
    MessagesAnswer,
    MessagesFormat,
    messages_failure,
)
from homenode.server.apis.anthropic.conversation import answer_request, prompt_request, shows_thoughts
from homenode.server.apis.anthropic.errors import MessagesError, messages_error
from homenode.server.apis.anthropic.openapi import tighten
from homenode.server.apis.anthropic.request import HINTS, MessagesCountRequest, MessagesRequest
from homenode.server.core.answer import respond_conversation
from homenode.server.core.api import POST_FAILURES, Api, Operation
from homenode.server.core.conversation import ConversationRequest, begin_conversation, conversation_text
from homenode.server.core.kv_transfer import kv_transfer_of
from homenode.server.core.pooling import generates
from homenode.server.core.prompts import encode_chat_text
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import beside_loop, unless_gone_early
from homenode.server.http.ignored import note_ignored, note_left_out
from homenode.server.http.sse import EVENTS
from homenode.server.models.model_table import read_for_model
from homenode.server.models.served_model import ServedModel


class MessagesCount(Struct):
    """Answer of /v1/messages/count_tokens."""

    input_tokens: int


_decode = decode_as(MessagesRequest, HINTS)
_decode_count = decode_as(MessagesCountRequest, HINTS)


async def messages(state: ServerState, request: Request) -> Response:
    """Answer a conversation."""
    body, asked_model = await read_for_model(state, request, _decode)
    note, taken = partial(note_ignored, request), asked_model.model.taken
    asked = await beside_loop(request, lambda: answer_request(body, state.thought_seal, note, taken=taken))
    conversation = await unless_gone_early(request, begin_conversation(asked_model, asked))
    seal = None if shows_thoughts(body.thinking) else state.thought_seal.seal
    answer = MessagesFormat(asked_model.name, conversation, seal, cached_apart=body.marks_cache())
    return await respond_conversation(
        state, request, conversation, answer, stream=bool(body.stream), form=EVENTS._replace(keep_alive=PING)
    )


async def count_tokens(state: ServerState, request: Request) -> Response:
    """Return how many tokens the prompt of a request has."""
    body, asked_model = await read_for_model(state, request, _decode_count)
    model = asked_model.model
    note = partial(note_ignored, request)
    asked = await beside_loop(request, lambda: prompt_request(body, state.thought_seal, note, taken=model.taken))
    count = await unless_gone_early(request, _count(model, request, asked))
    # What the request itself would be refused for is refused here, too.
    kv_transfer_of(model, body.kv_transfer_params, prompts=1, tokens=count, single=True)
    return json_response(MessagesCount(count))


async def _count(model: ServedModel, request: Request, asked: ConversationRequest) -> int:
    text = await conversation_text(model, asked)
    note_left_out(request, text.left_out)
    return len((await encode_chat_text(model, text, asked.add_special_tokens)).ids)


API = Api(
    stream_failure=messages_failure,
    operations=(
        Operation(
            path="/v1/messages",
            method="post",
            summary="Answer a conversation (Anthropic).",
            handler=messages,
            answer=MessagesAnswer,
            body=MessagesRequest,
            streams=MESSAGES_EVENTS,
            failures=POST_FAILURES,
            admits=True,
            documented=generates,
        ),
        Operation(
            path="/v1/messages/count_tokens",
            method="post",
            summary="How many tokens the prompt of a request to /v1/messages has.",
            handler=count_tokens,
            answer=MessagesCount,
            body=MessagesCountRequest,
            failures=POST_FAILURES,
            admits=True,
            documented=generates,
        ),
    ),
    tighten=tighten,
    prefix="/v1/messages/",
    error_shape=messages_error,
    error_body=MessagesError,
)
