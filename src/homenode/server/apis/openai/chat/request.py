"""The body of POST /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from homenode.server.apis.openai.messages import Messages
from homenode.server.apis.openai.requests import EmptyList, MaxTokens, Sampling


class TextFormat(Struct, forbid_unknown_fields=True):
    """The only response format so far."""

    type: Literal["text"]


class ChatRequest(Sampling, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Messages
    max_tokens: MaxTokens | None = None  # not 0, as is the next (checked in `translate`)
    max_completion_tokens: MaxTokens | None = None  # the newer name; it wins
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    store: bool | None = None
    service_tier: Literal["auto", "default"] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | None = None
    modalities: Annotated[list[Literal["text"]], Meta(min_length=1, max_length=1)] | None = None
    tools: EmptyList | None = None
    tool_choice: Literal["none"] | None = None
    functions: EmptyList | None = None
    function_call: Literal["none"] | None = None
    verbosity: Literal["medium"] | None = None
    reasoning_effort: Literal["none"] | None = None
    audio: None = None
    prediction: None = None
    web_search_options: None = None
    moderation: None = None
