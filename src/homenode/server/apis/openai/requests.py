"""Requests of the OpenAI API as this server takes them.

A field is here for one of three reasons: it works; it changes nothing about the answer (`user`, `metadata`); or the official API has it,
this server lacks what it stands for, and its type leaves only the value that asks for nothing (`tools: []`). Every other field, and every
other value, is refused by name. `None` means the default everywhere, as clients send nulls for what they leave open.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from homenode.server.http.decoding import FieldHints
from homenode.transfer.published import Published

_INT64 = 2**63 - 1

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenIds = list[TokenId]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MaxTokens = Annotated[
    int, Meta(ge=-1, le=2**31 - 1)
]  # -1: no limit but the context's, as clients of llama.cpp write it
EmptyList = Annotated[list[Any], Meta(max_length=0)]


class StreamOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a stream carries besides text."""

    include_usage: bool | None = None  # a last chunk with the totals
    continuous_usage_stats: bool | None = None  # the totals so far in every chunk
    include_obfuscation: bool | None = None  # padding against traffic analysis; none is ever sent


Ticket = Annotated[str, Meta(pattern="^[A-Za-z0-9._:-]{1,128}$")]


class KvTransferParams(Struct, forbid_unknown_fields=True, kw_only=True):
    """How the prompt's keys and values are handed over: computed here for another server, or taken from one. Given by the proxy."""

    do_remote_decode: bool | None = None  # this server computes the prompt, for `peer`
    do_remote_prefill: bool | None = None  # another server computes it, and hands it over under the ticket
    ticket: Ticket | None = None  # the same on both sides, of one request only
    peer: Published | None = (
        None  # what the other side says to GET /kv_transfer; of several engines there, the one that is to have the KV
    )
    engine: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")] | None = (
        None  # at a receiver of several engines: the incarnation of that one
    )


class Sampling(Struct, forbid_unknown_fields=True, kw_only=True):
    """What both generating endpoints share."""

    model: str | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None  # 0 or -1: off
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Meta(ge=-_INT64 - 1, le=_INT64)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[TokenIds, Meta(max_length=128)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=1024)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Meta(max_length=128)] | None = None
    kv_transfer_params: KvTransferParams | None = None
    user: str | None = None


class CompletionRequest(Sampling, kw_only=True):
    """Body of POST /v1/completions. `prompt`: a text, texts, token ids, or lists of token ids (checked in `translate`)."""

    prompt: str | list[str | TokenId | TokenIds]
    max_tokens: MaxTokens | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None


class TextPart(Struct, forbid_unknown_fields=True):
    """One piece of a message's text."""

    type: Literal["text"]
    text: str


Content = str | Annotated[list[TextPart], Meta(min_length=1)]


class SystemMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="system"):
    """Standing instructions."""

    content: Content
    name: str | None = None


class DeveloperMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="developer"):
    """The newer name of a system message; templates know it as one."""

    content: Content
    name: str | None = None


class UserMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="user"):
    """What the user said."""

    content: Content
    name: str | None = None


class AssistantMessage(Struct, forbid_unknown_fields=True, kw_only=True, tag_field="role", tag="assistant"):
    """What the model said before; clients send back the whole message they got, nulls included."""

    content: Content | None = None
    name: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: EmptyList | None = None
    annotations: EmptyList | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage
Messages = Annotated[list[Message], Meta(min_length=1, max_length=4096)]


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


class TokenizeRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /tokenize: either `prompt` or `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
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


class ReleaseRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /kv_transfer/release."""

    ticket: Ticket
    reason: Annotated[str, Meta(max_length=256)] | None = None


# What to do about values that a field does not take, where that is not plain from the range it has.
REMEDIES = dict.fromkeys(
    ("max_tokens", "max_completion_tokens"), "leave it out, or send -1, for no limit but the context's"
)

# Fields of the official API that would change the answer and are not built yet: what to tell who sends them.
UNSUPPORTED = {
    "best_of": "ask for several choices with `n` and pick one yourself",
    "suffix": "text can only be continued, not filled in",
    "tools": "the model cannot be given tools yet",
    "tool_choice": "the model cannot be given tools yet",
    "functions": "the model cannot be given functions yet",
    "function_call": "the model cannot be given functions yet",
    "tool_calls": "the model cannot be given tools yet",
    "response_format": "only {\"type\": \"text\"} is supported so far",
    "modalities": "only [\"text\"] is supported",
    "audio": "only text is supported",
    "prediction": "predicted output is not supported",
    "web_search_options": "there is no web search",
    "moderation": "there is no moderation",
    "reasoning_effort": "use `chat_template_kwargs` where the model's template has a switch for it",
    "verbosity": "say in a message how long the answer should be",
    "service_tier": "there is one tier: leave it out or send \"auto\"",
    "prompt_cache_options": "equal prompt beginnings are cached by themselves; `cache_salt` keeps them apart",
    "prompt_cache_retention": "equal prompt beginnings are cached by themselves; `cache_salt` keeps them apart",
}  # fmt: skip

HINTS = FieldHints(REMEDIES, UNSUPPORTED)
