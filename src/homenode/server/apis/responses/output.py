"""A response as the Responses API has it: its items, its usage, and what of the request it repeats."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from homenode.server.apis.responses.items import ItemStatus
from homenode.server.core.kv_transfer import KvTransferResult
from homenode.server.core.timings import AnswerTimings
from homenode.server.keys.service_tiers import ServiceTier


class ResponsesTopLogprob(Struct):
    """A token that could have been drawn."""

    token: str
    logprob: float
    bytes: list[int]


class ResponsesLogprob(Struct):
    """A token that was drawn, and the most likely ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ResponsesTopLogprob]


class ResponsesOutputText(Struct, kw_only=True, tag_field="type", tag="output_text"):
    """A text for the user."""

    text: str
    annotations: list[Any] = []
    logprobs: list[ResponsesLogprob] = []


class ResponsesReasoningText(Struct, kw_only=True, tag_field="type", tag="reasoning_text"):
    """Thoughts as the model wrote them."""

    text: str


class ResponsesSummaryText(Struct, kw_only=True, tag_field="type", tag="summary_text"):
    """Thoughts where a summary of them was asked for. Nobody sums them up here: they are the whole of them."""

    text: str


class ResponsesOutputMessage(Struct, kw_only=True, tag_field="type", tag="message"):
    """The words that the model said to the user."""

    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[ResponsesOutputText]


class ResponsesOutputReasoning(Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """The thoughts that the model had. `encrypted_content`: the thoughts sealed, where that was asked for."""

    id: str
    status: ItemStatus
    summary: list[ResponsesSummaryText]
    content: list[ResponsesReasoningText]
    encrypted_content: str | UnsetType = UNSET


class ResponsesOutputFunctionCall(Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A function that the model calls. `arguments` is JSON text."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    arguments: str


class ResponsesOutputCustomCall(Struct, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A tool that the model gives a text to."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    namespace: str | UnsetType = UNSET
    input: str


OutputItem = ResponsesOutputMessage | ResponsesOutputReasoning | ResponsesOutputFunctionCall | ResponsesOutputCustomCall


class ResponsesInputTokensDetails(Struct, kw_only=True):
    """`cached_tokens`: those whose keys and values were found in the prefix cache."""

    cached_tokens: int
    cache_write_tokens: int = 0  # nothing is counted for writing to the cache


class ResponsesOutputTokensDetails(Struct, kw_only=True):
    """`reasoning_tokens`: those of thoughts."""

    reasoning_tokens: int


class ResponsesUsage(Struct, kw_only=True):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: ResponsesInputTokensDetails
    output_tokens: int
    output_tokens_details: ResponsesOutputTokensDetails
    total_tokens: int


class ResponsesFailure(Struct, kw_only=True):
    """Reason why there is no answer. `code` is for programs."""

    code: str
    message: str


class ResponsesIncompleteDetails(Struct):
    """Reason why an answer is cut."""

    reason: Literal["max_output_tokens"]


ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class ResponseObject(Struct, kw_only=True):
    """A response: what was asked for, as far as it is repeated, and what came of it."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: ResponseStatus
    background: bool = False
    error: ResponsesFailure | None = None
    incomplete_details: ResponsesIncompleteDetails | None = None
    instructions: str | list[Any] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: dict[str, Any]
    safety_identifier: str | None = None
    service_tier: ServiceTier = "default"
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any]
    top_logprobs: int = 0
    top_p: float | None
    truncation: Literal["auto", "disabled"]
    usage: ResponsesUsage | UnsetType = UNSET
    user: str | UnsetType = UNSET
    timings: AnswerTimings | UnsetType = UNSET
    kv_transfer_params: KvTransferResult | UnsetType = UNSET
