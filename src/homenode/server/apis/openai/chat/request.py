"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from homenode.server.apis.openai.chat_messages import Messages
from homenode.server.apis.openai.requests import MaxTokens, Sampling
from homenode.server.apis.openai.tools import Choice, Functions, NamedFunction, Tools
from homenode.server.core.generation_fields import Count, Effort


class ReasoningOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """Thoughts, as some clients ask for them. `exclude`: they are left out of the answer. `max_tokens`: the most that
    they may take.
    """

    effort: Effort | None = None
    max_tokens: Count | None = None
    enabled: bool | None = None
    exclude: bool | None = None


class ThinkingOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """Thoughts, as other clients ask for them. `budget_tokens`: the most that they may take."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None


class ChatRequest(Sampling, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Messages
    max_tokens: MaxTokens | None = None  # not 0, as is the next (checked in `endpoint`)
    max_completion_tokens: MaxTokens | None = None  # the newer name; it wins
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    tools: Tools | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    functions: Functions | None = None  # tools of old clients, as is the next
    function_call: Literal["none", "auto"] | NamedFunction | None = None
    reasoning_effort: Effort | None = None
    reasoning: ReasoningOptions | None = None
    thinking: ThinkingOptions | None = None
    enable_thinking: bool | None = None
    thinking_token_budget: Count | None = None  # the most tokens that thoughts may take
    include_reasoning: bool | None = None  # false: the thoughts are left out of the answer
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    audio: None = None
    moderation: None = None


def thinking_of(body: ChatRequest) -> bool | None:
    """Return whether there are to be thoughts, in any of the words for that; None: nothing is said."""
    if body.enable_thinking is not None:
        return body.enable_thinking
    if body.thinking is not None and body.thinking.type != "adaptive":
        return body.thinking.type == "enabled"
    return body.reasoning.enabled if body.reasoning else None


def effort_of(body: ChatRequest) -> str | None:
    """Return how much is to be thought; None: nothing is said."""
    return body.reasoning_effort or (body.reasoning.effort if body.reasoning else None)


def shows_thoughts(body: ChatRequest) -> bool:
    """Return whether the answer has the thoughts."""
    return body.include_reasoning is not False and not (body.reasoning and body.reasoning.exclude)


def budget_of(body: ChatRequest) -> int | None:
    """The most tokens that thoughts may take; None: nothing is said."""
    if body.thinking_token_budget is not None:
        return body.thinking_token_budget
    if body.thinking is not None and body.thinking.budget_tokens is not None:
        return body.thinking.budget_tokens
    return body.reasoning.max_tokens if body.reasoning else None
