"""The answers of POST /v1/completions."""

from __future__ import annotations

import secrets
import time
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from homenode.server.apis.openai.completions.request import CompletionRequest
from homenode.server.apis.openai.requests import StreamOptions
from homenode.server.apis.openai.usage import (
    LEAST_LOGPROB,
    Usage,
    usage_of,
    wants_timings,
)
from homenode.server.core.choices.choice import GenerationEvent, ScoredToken
from homenode.server.core.generation import Generation
from homenode.server.core.kv_transfer import KvTransferResult
from homenode.server.core.timings import AnswerTimings, timings_of
from homenode.server.http.failures import ApiError
from homenode.server.http.sse import DONE, event
from homenode.server.interfaces.tokenizer import TokenizerLike
from homenode.server.keys.service_tiers import ServiceTier
from homenode.server.models.served_model import ServedModel


class CompletionLogprobs(Struct):
    """Parallel lists, one entry a token. `text_offset`: characters of the choice's text before the token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class PromptLogprob(Struct):
    """A token in one place of the prompt. `rank`: 1 for the likeliest there; null beyond those that were asked for."""

    logprob: float
    rank: int | None
    decoded_token: str


class CompletionChoice(Struct, kw_only=True):
    """A continuation, whole or a piece of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | UnsetType = UNSET


class TextCompletion(Struct, kw_only=True):
    """Answer of /v1/completions, and each chunk of its stream. `created`: seconds since 1970."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET
    system_fingerprint: str
    service_tier: ServiceTier | UnsetType = UNSET
    kv_transfer_params: KvTransferResult | UnsetType = UNSET
    timings: AnswerTimings | UnsetType = UNSET


class CompletionFormat:
    """A `TextFormat`: text completions."""

    def __init__(self, model: ServedModel, name: str, body: CompletionRequest, generation: Generation) -> None:
        """`name`: of the model, as it was asked for."""
        self._tokenizer, self._body, self._generation = model.tokenizer, body, generation
        self._id, self._created, self._model = (
            f"cmpl-{secrets.token_hex(12)}",
            int(time.time()),
            name,
        )
        self._fingerprint, self._options = model.fingerprint, body.stream_options or StreamOptions()
        self._tier: ServiceTier | UnsetType = generation.tier if body.service_tier else UNSET

    def whole(self, choices: list[GenerationEvent]) -> bytes:
        """One completion with all choices."""
        answer = self._completion([self._choice(choice, first=True) for choice in choices])
        answer.usage = usage_of(self._generation)
        answer.kv_transfer_params = self._generation.kv_result or UNSET
        if wants_timings(self._body):
            answer.timings = timings_of(self._generation)
        return msgspec.json.encode(answer)

    def event(self, part: GenerationEvent, *, first: bool) -> bytes:
        """A completion with a part of one choice."""
        chunk = self._completion([self._choice(part, first=first)])
        if self._body.timings_per_token or (part.finish_reason and self._body.return_timings):
            chunk.timings = timings_of(self._generation)
        if self._options.include_usage or self._options.continuous_usage_stats:
            chunk.usage = usage_of(self._generation) if self._options.continuous_usage_stats else None
        return event(chunk)

    def end(self) -> bytes:
        """The totals, if they were asked for, and [DONE]."""
        if not self._options.include_usage:
            return DONE
        chunk = self._completion([])
        chunk.usage = usage_of(self._generation)
        return event(chunk) + DONE

    def failure(self, error: ApiError) -> bytes:
        """An error body; no [DONE] follows."""
        return event(error.body)

    def _completion(self, choices: list[CompletionChoice]) -> TextCompletion:
        return TextCompletion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=choices,
            system_fingerprint=self._fingerprint,
            service_tier=self._tier,
        )

    def _choice(self, part: GenerationEvent, *, first: bool) -> CompletionChoice:
        top, ids = self._body.logprobs, bool(self._body.return_token_ids)
        return CompletionChoice(
            index=part.choice,
            text=part.text,
            logprobs=None if top is None else _logprobs(self._tokenizer, part.scored, top),
            finish_reason=part.finish_reason,  # type: ignore[arg-type]
            token_ids=part.token_ids if ids else UNSET,
            prompt_token_ids=self._generation.prompt_ids(part.choice) if ids and first else UNSET,
            prompt_logprobs=self._prompt_logprobs(part),
        )

    def _prompt_logprobs(self, part: GenerationEvent) -> list[dict[str, PromptLogprob] | None] | UnsetType:
        """Return for each token of the prompt but the first, by id: itself, and the likeliest in its place."""
        top = self._body.prompt_logprobs
        if top is None or part.prompt_scores is None:
            return UNSET
        prompt, name = self._generation.prompt_ids(part.choice), self._tokenizer.token_text
        found: list[dict[str, PromptLogprob] | None] = []
        for token, score in zip(prompt, part.prompt_scores, strict=True):
            if score is None:
                found.append(None)
                continue
            ranks = {each: rank for rank, (each, _) in enumerate(score.top, start=1)}
            shown = {token: score.logprob, **dict(score.top[:top])}
            found.append(
                {
                    str(each): PromptLogprob(max(logprob, LEAST_LOGPROB), ranks.get(each), name(each))
                    for each, logprob in shown.items()
                }
            )
        return found


def _logprobs(tokenizer: TokenizerLike, scored: list[ScoredToken], top: int) -> CompletionLogprobs:
    """Parallel lists. `top_logprobs` has the `top` likeliest tokens and the one that came; null for 0."""
    return CompletionLogprobs(
        tokens=[tokenizer.token_text(entry.token) for entry in scored],
        token_logprobs=[
            None if entry.logprob is None else max(entry.logprob.logprob, LEAST_LOGPROB) for entry in scored
        ],
        top_logprobs=[_top(tokenizer, entry, top) for entry in scored] if top else None,
        text_offset=[entry.offset for entry in scored],
    )


def _top(tokenizer: TokenizerLike, entry: ScoredToken, wanted: int) -> dict[str, float] | None:
    """Tokens with the same text (parts of characters) share a key; the likeliest keeps it."""
    if entry.logprob is None:
        return None
    top: dict[str, float] = {}
    for token, logprob in (*entry.logprob.top[:wanted], (entry.token, entry.logprob.logprob)):
        top.setdefault(tokenizer.token_text(token), max(logprob, LEAST_LOGPROB))
    return top
