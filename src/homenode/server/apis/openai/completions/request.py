"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from homenode.server.apis.openai.requests import Choices, MaxTokens, Sampling
from homenode.server.core.generation_fields import TokenId, TokenIds


class CompletionRequest(Sampling, kw_only=True):
    """Body of POST /v1/completions. `prompt`: a text, texts, token ids, or lists of token ids. `suffix`: what comes
    behind the text that is wanted, for models that fill in the middle. `prompt_embeds`: prompts as rows of embeddings,
    answered before those of `prompt`.
    """

    prompt: str | list[str | TokenId | TokenIds] | None = None
    prompt_embeds: str | Annotated[list[str], Meta(min_length=1, max_length=1024)] | None = None
    max_tokens: MaxTokens | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Choices | None = None  # 1, or as many as `n` (checked in `endpoint`)
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str | None = None
