"""POST /api/chat: a conversation answered, one JSON object a line."""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from homenode.chat.offer import ToolOffer
from homenode.chat.sent_texts import SentText
from homenode.server.apis.ollama.answer import chat_line, loaded
from homenode.server.apis.ollama.asked import answered, check_asked, conversation_request, model_asked, prompt_cut
from homenode.server.apis.ollama.history import ends_open, template_messages
from homenode.server.apis.ollama.request import HINTS, OllamaChatRequest, OllamaTool
from homenode.server.core.conversation import Conversation, ConversationRequest, begin_conversation
from homenode.server.core.prompt_forms.truncation import truncated
from homenode.server.core.state import ServerState
from homenode.server.http.decoding import decode_as
from homenode.server.http.endpoint import json_response
from homenode.server.http.exchange import beside_loop, read_json, unless_gone_early
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_ignored, note_left_out
from homenode.server.models.served_model import AskedModel

_decode = decode_as(OllamaChatRequest, HINTS)


async def chat(state: ServerState, request: Request) -> Response:
    """Answer a conversation; without messages there is nothing to do, as the model is loaded."""
    body = await read_json(state, request, _decode, any_type=True)
    asked_model = await model_asked(state, request, body, empty=not body.messages)
    if asked_model is None:
        return json_response(loaded(chat_line, body.model, "unload"))
    model = asked_model.model
    check_asked(model, request, body)
    said = body.messages
    if not said:
        return json_response(loaded(chat_line, body.model))
    goes_on, note = ends_open(said), partial(note_ignored, request)
    asked = conversation_request(
        body,
        continue_final=goes_on,
        add_generation_prompt=False if goes_on else None,
        messages=await beside_loop(request, lambda: template_messages(said, note, taken=model.taken)),
        offer=_offer(body.tools),
        cut=prompt_cut(body, "messages"),
    )
    conversation = await unless_gone_early(request, _begin(asked_model, request, body, asked))
    return await answered(state, model, request, body, conversation, chat_line)


async def _begin(
    asked_model: AskedModel, request: Request, body: OllamaChatRequest, asked: ConversationRequest
) -> Conversation:
    """Raises ApiError 400. Dropped turns are told as `messages`."""
    if body.truncate is not False:
        whole, asked = asked, await truncated(asked_model.model, asked)
        if asked is not whole:
            note_left_out(request, [SentText("messages", "", by_template=True)])
    return await begin_conversation(asked_model, asked)


def _offer(tools: list[OllamaTool] | None) -> ToolOffer | None:
    """The tools, which the model may call. Raises ApiError 400."""
    offered: dict[str, dict[str, Any]] = {}
    for number, tool in enumerate(tools or ()):
        told = {
            "name": tool.function.name,
            "description": tool.function.description,
            "parameters": tool.function.parameters,
            "strict": tool.function.strict,
        }
        function = {"type": "function", "function": {key: value for key, value in told.items() if value is not None}}
        if offered.setdefault(tool.function.name, function) != function:
            param = f"tools[{number}].function.name"
            text = f"`{param}`: there are two unlike functions `{tool.function.name}`; give each a name of its own"
            raise ApiError(400, text, param=param, code="invalid_value")
    return ToolOffer(list(offered.values())) if offered else None
