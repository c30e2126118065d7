"""Answers of the OpenAI API. A field without a default is always written, null included; one with UNSET only where it has a value."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from homenode.engine.messages import EngineState


class PromptDetails(Struct):
    """`cached_tokens`: prompt tokens whose keys and values were found in the prefix cache."""

    cached_tokens: int


class Usage(Struct, kw_only=True):
    """Tokens of a whole request: each prompt counted once, every choice's tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class CompletionLogprobs(Struct):
    """Parallel lists, one entry a token. `text_offset`: characters of the choice's text before the token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    """A continuation, whole or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class KvTransferResult(Struct, kw_only=True):
    """What came of a hand-over that was asked for. `tokens`: prompt tokens whose keys and values the other side gets under `ticket`. `status`:
    `computed`, or `nothing` where there is nothing to hand over and the ticket need not be given on."""

    ticket: str
    tokens: int
    status: Literal["computed", "nothing"]


class TextCompletion(Struct, kw_only=True):
    """Answer of /v1/completions, and each chunk of its stream. `created`: seconds since 1970."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str
    kv_transfer_params: KvTransferResult | UnsetType = UNSET


class TopLogprob(Struct):
    """A token that could have been drawn. `bytes`: its UTF-8 bytes, for tokens that are only part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class ChatTokenLogprob(Struct):
    """A token that was drawn, and the most likely ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct):
    """One entry for each token of the message."""

    content: list[ChatTokenLogprob] | None
    refusal: None = None


class ChatMessage(Struct, kw_only=True):
    """What the model said."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None


class ChatChoice(Struct, kw_only=True):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str
    prompt_token_ids: list[int] | UnsetType = UNSET
    kv_transfer_params: KvTransferResult | UnsetType = UNSET


class Delta(Struct, kw_only=True):
    """What a chunk adds to the message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(Struct, kw_only=True):
    """A piece of an answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    """Each chunk of a chat stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str
    prompt_token_ids: list[int] | UnsetType = UNSET


class Model(Struct, kw_only=True):
    """A model that can be asked for. `max_model_len`: most tokens of prompt and answer together."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "homenode"
    root: str
    max_model_len: int


class ModelList(Struct, kw_only=True):
    """Answer of /v1/models."""

    object: Literal["list"] = "list"
    data: list[Model]


class Tokenized(Struct, kw_only=True):
    """Answer of /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(Struct):
    """Answer of /detokenize."""

    prompt: str


class EngineHealth(Struct):
    """One of several engines. `state`: a `silent` one is not given requests, a `gone` one is not started any more."""

    engine: int
    state: EngineState
    restarts: int


class Health(Struct):
    """Answer of /health. `heartbeat_seconds`: how long the engine loop, or the fastest of several, took to answer. `engines`: if several."""

    status: Literal["ok"]
    heartbeat_seconds: float
    engines: list[EngineHealth] | UnsetType = UNSET


class KvReleased(Struct):
    """Answer of /kv_transfer/release, whether there was such a ticket or not."""

    ticket: str
    status: Literal["released"] = "released"


class Version(Struct):
    """Answer of /version."""

    version: str
