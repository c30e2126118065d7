"""POST /v1/responses: a conversation goes on by a message, which is told as a response and kept."""

from __future__ import annotations

import logging
import time
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct
from starlette.requests import Request
from starlette.responses import Response

from homenode.server.apis.responses.answer import ResponsesFormat, failed_stream
from homenode.server.apis.responses.background import answer_in_background
from homenode.server.apis.responses.conversation import (
    SEALED,
    AskedConversation,
    note_unmet,
    offer_of,
    told,
    wants_logprobs,
    written_messages,
)
from homenode.server.apis.responses.history import ItemHistory, read_history, work_items
from homenode.server.apis.responses.input import more_tools, read_tools
from homenode.server.apis.responses.output import ResponseObject
from homenode.server.apis.responses.output_builder import OutputBuilder
from homenode.server.apis.responses.request import HINTS, ResponsesRequest
from homenode.server.apis.responses.tools import OfferedTools
from homenode.server.core.answer import note_conversation, respond_conversation
from homenode.server.core.response_store import StoredResponse, new_response_id
from homenode.server.core.setting_fields import given_settings
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import unless_gone_early
from homenode.server.http.failures import CONTEXT_LENGTH_EXCEEDED, ApiError
from homenode.server.http.ignored import note_ignored
from homenode.server.http.sse import STREAM_HEADERS
from homenode.server.keys.caller import caller
from homenode.server.models.model_table import read_for_model
from homenode.server.models.served_model import AskedModel, ServedModel

_LOG = logging.getLogger("homenode.server")


class ResponsesInputTokens(Struct, kw_only=True):
    """Answer of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


_decode = decode_as(ResponsesRequest, HINTS)


async def create_response(state: ServerState, request: Request) -> Response:
    """Answer a conversation."""
    body, asked_model = await read_for_model(state, request, _decode)
    _check_background(state, body)
    try:
        answer, history = await unless_gone_early(request, _begin(state, asked_model, request, body))
    except ApiError as error:
        if not body.stream or error.body.error.code != CONTEXT_LENGTH_EXCEEDED:
            raise
        # Agents know a conversation that is too long by the end of a stream, and not by a status.
        return _failed_response(_response(state, asked_model, body), error)

    if body.background:
        note_conversation(request, answer.conversation)
        request_id = str(request.state.request_id)
        items = await state.text_work.run(history.kept, work_items(history.size))
        return await answer_in_background(state, answer, items, caller().name, request_id)

    async def keep() -> None:
        if answer.response.store:
            await _keep(state, answer.response, history)

    return await respond_conversation(
        state,
        request,
        answer.conversation,
        answer,
        stream=bool(body.stream),
        before_end=keep,
        opening=answer.opening,
    )


def _failed_response(response: ResponseObject, error: ApiError) -> Response:
    answer = Response(failed_stream(response, error))
    answer.raw_headers.extend(STREAM_HEADERS)
    return answer


def _check_background(state: ServerState, body: ResponsesRequest) -> None:
    """Raises ApiError 400 for a response in the background that could not be fetched."""
    if not body.background:
        return
    if body.stream:
        text = "`background`: a response in the background is fetched, not streamed; leave one of both out"
        raise ApiError(400, text, param="background", code="unsupported_parameter")
    if not _is_kept(state, body):
        text = "`background`: a response in the background is fetched from the store; leave `store`: false out"
        if not state.config.max_stored_responses:
            text = "`background`: a response in the background is fetched from the store, and this server stores none"
        raise ApiError(400, text, param="background", code="invalid_value")


async def count_input_tokens(state: ServerState, request: Request) -> Response:
    """Return how many tokens the prompt of a request has."""
    body, asked_model = await read_for_model(state, request, _decode)
    count = await unless_gone_early(request, _count(state, asked_model.model, request, body))
    return json_response(ResponsesInputTokens(input_tokens=count))


async def _count(state: ServerState, model: ServedModel, request: Request, body: ResponsesRequest) -> int:
    asked, _, _ = await _read(state, model, request, body)
    return await asked.count(model)


async def _read(
    state: ServerState, model: ServedModel, request: Request, body: ResponsesRequest
) -> tuple[AskedConversation, ItemHistory, OfferedTools]:
    """Raises ApiError 400 and 404."""

    def note(name: str, place: str) -> None:
        note_ignored(request, name, place)

    note_unmet(body, note)
    length = request.headers.get("content-length")
    size = state.config.max_request_body if length is None else int(length)
    history = await read_history(state, body, size, note)
    cost = work_items(history.size)
    tools = await state.text_work.run(
        lambda: OfferedTools([*read_tools(body.tools or (), "tools", note), *more_tools(history.items, note)]), cost
    )
    taken = model.taken
    messages = await state.text_work.run(lambda: written_messages(state, body, history, tools, note, taken=taken), cost)
    return AskedConversation(body, messages, await offer_of(model, body, tools)), history, tools


async def _begin(
    state: ServerState, asked_model: AskedModel, request: Request, body: ResponsesRequest
) -> tuple[ResponsesFormat, ItemHistory]:
    """Raises ApiError 400 and 404, and UserError when the chat template refuses the messages."""
    model = asked_model.model
    asked, history, tools = await _read(state, model, request, body)
    conversation = await asked.begin(asked_model)
    response = _response(state, asked_model, body)
    options = body.reasoning
    builder = OutputBuilder(
        response.id.partition("_")[2],
        tools,
        thoughts_as_summary=options is not None and (options.summary or options.generate_summary) is not None,
        seal=state.thought_seal if SEALED in (body.include or ()) else None,
    )
    timings = bool(body.return_timings or body.timings_per_token)
    answer = ResponsesFormat(
        response, builder, conversation, model.tokenizer, logprobs=wants_logprobs(body), timings=timings
    )
    return answer, history


def _response(state: ServerState, asked_model: AskedModel, body: ResponsesRequest) -> ResponseObject:
    """The response before anything has come of it."""
    model = asked_model.model
    defaults = model.sampling_defaults
    sampling = {"temperature": 1.0, "top_p": 1.0, **defaults, **given_settings(body)}
    choice: Any = "auto" if body.tool_choice is None else _told_choice(msgspec.to_builtins(body.tool_choice))
    return ResponseObject(
        id=new_response_id(),
        created_at=int(time.time()),
        status="in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=asked_model.name,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": None, "summary": None, **told(body.reasoning)},
        safety_identifier=body.safety_identifier,
        service_tier=caller().rank(body.service_tier, body.priority).tier,
        store=_is_kept(state, body),
        temperature=sampling["temperature"],
        text={"format": {"type": "text"}, **told(body.text)},
        tool_choice=choice,
        tools=[_told_tool(tool) for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=sampling["top_p"],
        truncation=body.truncation or "disabled",
        user=body.user or UNSET,
    )


def _told_choice(choice: Any) -> Any:
    """A choice as it is repeated: in the words of this API."""
    if isinstance(choice, str) or choice.keys() == {"type"}:
        word = choice if isinstance(choice, str) else choice["type"]
        return "required" if word == "any" else word
    named = choice.pop("function", None) or {}
    return {name: value for name, value in (choice | named).items() if value is not None}


def _told_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool as it is repeated: a function with all fields that it must have in an answer."""
    return {"parameters": None, "strict": None, **tool} if tool.get("type") == "function" else tool


def _is_kept(state: ServerState, body: ResponsesRequest) -> bool:
    """Return whether the response is stored. Of one whose prompt is computed for another server that one has the
    answer.
    """
    for_another = body.kv_transfer_params is not None and bool(body.kv_transfer_params.do_remote_decode)
    return body.store is not False and state.config.max_stored_responses > 0 and not for_another


async def _keep(state: ServerState, response: ResponseObject, history: ItemHistory) -> None:
    """Store a response. One for which there is no room is given out all the same."""
    items = await state.text_work.run(history.kept, work_items(history.size))
    stored = StoredResponse(response=Raw(msgspec.json.encode(response)), items=items, key=caller().name)
    try:
        await state.responses.put(response.id, stored)
    except OSError as error:
        _LOG.warning("the response %s could not be stored: %s", response.id, error.strerror)
