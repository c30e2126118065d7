"""A chat request in the words of the conversation core."""

from __future__ import annotations

import msgspec
from starlette.requests import Request

from homenode.chat.offer import ToolOffer
from homenode.server.apis.openai.chat.request import ChatRequest, budget_of, effort_of, thinking_of
from homenode.server.apis.openai.chat_messages import goes_on, template_messages
from homenode.server.apis.openai.requests import REMEDIES
from homenode.server.apis.openai.sampling import NO_LIMIT, sampling_of
from homenode.server.apis.openai.structured import output_of
from homenode.server.apis.openai.tools import (
    ChatTool,
    NamedFunction,
    ToolChoice,
    ToolDefinition,
    check_inputs,
    given_tools,
    tool_offer,
)
from homenode.server.core.conversation import ConversationRequest
from homenode.server.core.generation_fields import KEPT_VERBOSITY
from homenode.server.http.failures import ApiError
from homenode.server.http.ignored import note_ignored
from homenode.server.models.served_model import ServedModel


async def conversation_of(
    model: ServedModel, request: Request, body: ChatRequest, tools: dict[str, ChatTool]
) -> ConversationRequest:
    """The request in the words of the conversation core. `tools`: see `chat_tools`. Raises ApiError 400."""
    if body.top_logprobs and not body.logprobs:
        raise ApiError(400, "`top_logprobs` needs `logprobs`: true", param="top_logprobs", code="invalid_value")
    _note_without_effect(request, body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    max_tokens, output = _max_tokens(body), output_of(body)
    offer = _offer(body, tools)
    await check_inputs(model, tools, offer)
    return ConversationRequest(
        messages=template_messages(request, body.messages, taken=model.taken),
        offer=offer,
        reasoning_effort=effort_of(body),
        thinking=thinking_of(body),
        thinking_budget=budget_of(body),
        raw_thoughts=model.config.reasoning_format == "none",
        template_kwargs=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final=bool(body.continue_final_message)
        or goes_on(body.messages, turn_begins=body.add_generation_prompt),
        add_special_tokens=body.add_special_tokens,
        output=output[0] if output else None,
        output_param=output[1] if output else "",
        sampling=msgspec.structs.replace(sampling_of(body), logprobs=logprobs),
        max_tokens=None if max_tokens == NO_LIMIT else max_tokens,
        skip_special_tokens=body.skip_special_tokens is not False,
        service_tier=body.service_tier,
        priority=body.priority,
        cache_salt=body.cache_salt or "",
        session=body.session or "",
        speculative=body.speculative is not False,
        token_ids=bool(body.return_token_ids),
        shows_stop=bool(body.include_stop_str_in_output),
        stream=bool(body.stream),
        kv_transfer=body.kv_transfer_params,
    )


def _note_without_effect(request: Request, body: ChatRequest) -> None:
    """Tell of wishes that are taken, but change nothing here."""
    if body.verbosity not in KEPT_VERBOSITY:
        note_ignored(request, "verbosity")


def chat_tools(request: Request, body: ChatRequest) -> dict[str, ChatTool]:
    """The tools, which old clients call functions, by name. Raises ApiError 400."""
    if not body.functions:
        return given_tools(request, body.tools)
    if body.tools:
        raise ApiError(400, "`functions` and `tools` exclude each other", param="functions", code="invalid_value")
    return given_tools(request, [ToolDefinition(function=function) for function in body.functions])


def _offer(body: ChatRequest, tools: dict[str, ChatTool]) -> ToolOffer | None:
    if not body.functions:
        return tool_offer(tools, body.tool_choice, body.parallel_tool_calls)
    choice = body.function_call
    wanted = ToolChoice(function=choice) if isinstance(choice, NamedFunction) else choice
    return tool_offer(tools, wanted, False)


def _max_tokens(body: ChatRequest) -> int | None:
    """The most tokens of an answer, whose limit has two names here and is never 0. Raises ApiError 400."""
    for param, asked in (("max_completion_tokens", body.max_completion_tokens), ("max_tokens", body.max_tokens)):
        if asked == 0:
            raise ApiError(400, f"`{param}`: expected `int` >= 1; {REMEDIES[param]}", param=param, code="invalid_value")
    return body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
