"""The answers of POST /v1/chat/completions."""

from __future__ import annotations

import secrets
import time
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from homenode.server.apis.openai.chat.request import ChatRequest
from homenode.server.apis.openai.requests import StreamOptions
from homenode.server.apis.openai.responses import LEAST_LOGPROB, Usage, usage_of
from homenode.server.core.choice import GenerationEvent, ScoredToken
from homenode.server.core.generation import Generation
from homenode.server.core.kv_transfer import KvTransferResult
from homenode.server.core.state import ServerState
from homenode.server.http.failures import ApiError
from homenode.server.http.sse import DONE, event
from homenode.server.interfaces.tokenizer import TokenizerLike


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
    """One answer of several, `index` among them."""

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


class ChatFormat:
    """An `AnswerFormat`: chat completions, whose streams begin with the role of each choice."""

    def __init__(self, state: ServerState, body: ChatRequest, model: str, generation: Generation) -> None:
        self._tokenizer, self._body, self._generation = state.tokenizer, body, generation
        self._id, self._created, self._model = f"chatcmpl-{secrets.token_hex(12)}", int(time.time()), model
        self._fingerprint, self._options = state.fingerprint, body.stream_options or StreamOptions()
        self._opened = False  # an event was written

    def whole(self, choices: list[GenerationEvent]) -> bytes:
        """One completion with all choices."""
        answer = ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self._choice(choice) for choice in choices],
            usage=usage_of(self._generation),
            system_fingerprint=self._fingerprint,
            prompt_token_ids=self._prompt_ids(),
            kv_transfer_params=self._generation.kv_result or UNSET,
        )
        return msgspec.json.encode(answer)

    def event(self, part: GenerationEvent, *, first: bool) -> bytes:
        """The role of a choice before its first part, and the part."""
        chunk = event(self._chunk([self._chunk_choice(part)]))
        if not first:
            return chunk
        role = self._chunk([_opening(part.choice)])
        role.prompt_token_ids = UNSET if self._opened else self._prompt_ids()
        self._opened = True
        return event(role) + chunk

    def end(self) -> bytes:
        """The totals, if they were asked for, and [DONE]."""
        if not self._options.include_usage:
            return DONE
        last = self._chunk([])
        last.usage = usage_of(self._generation)
        return event(last) + DONE

    def failure(self, error: ApiError) -> bytes:
        """An error body; no [DONE] follows."""
        return event(error.body)

    def _prompt_ids(self) -> list[int] | UnsetType:
        return self._generation.prompt_ids(0) if self._body.return_token_ids else UNSET

    def _chunk(self, choices: list[ChunkChoice]) -> ChatChunk:
        chunk = ChatChunk(
            id=self._id, created=self._created, model=self._model, choices=choices, system_fingerprint=self._fingerprint
        )
        if self._options.include_usage or self._options.continuous_usage_stats:
            chunk.usage = usage_of(self._generation) if self._options.continuous_usage_stats else None
        return chunk

    def _choice(self, choice: GenerationEvent) -> ChatChoice:
        return ChatChoice(
            index=choice.choice,
            message=ChatMessage(content=choice.text),
            logprobs=self._logprobs(choice.scored),
            finish_reason=choice.finish_reason,  # type: ignore[arg-type]
            token_ids=choice.token_ids if self._body.return_token_ids else UNSET,
        )

    def _chunk_choice(self, part: GenerationEvent) -> ChunkChoice:
        return ChunkChoice(
            index=part.choice,
            delta=Delta(content=part.text) if part.text else Delta(),
            logprobs=self._logprobs(part.scored),
            finish_reason=part.finish_reason,  # type: ignore[arg-type]
            token_ids=part.token_ids if self._body.return_token_ids else UNSET,
        )

    def _logprobs(self, scored: list[ScoredToken]) -> ChatLogprobs | None:
        if not self._body.logprobs:
            return None
        return ChatLogprobs([_scored(self._tokenizer, entry) for entry in scored])


def _opening(index: int) -> ChunkChoice:
    return ChunkChoice(index=index, delta=Delta(role="assistant", content=""), logprobs=None, finish_reason=None)


def _scored(tokenizer: TokenizerLike, entry: ScoredToken) -> ChatTokenLogprob:
    assert entry.logprob is not None  # only the first token of a prompt has none, and prompts are not echoed here
    top = [_top(tokenizer, token, logprob) for token, logprob in entry.logprob.top]
    own = _top(tokenizer, entry.token, entry.logprob.logprob)
    return ChatTokenLogprob(own.token, own.logprob, own.bytes, top)


def _top(tokenizer: TokenizerLike, token: int, logprob: float) -> TopLogprob:
    return TopLogprob(tokenizer.token_text(token), max(logprob, LEAST_LOGPROB), list(tokenizer.token_bytes(token)))
