"""The body of POST /v1/completions."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from homenode.server.apis.openai.requests import MaxTokens, Sampling
from homenode.server.core.generation_fields import TokenId, TokenIds
from homenode.server.http.failures import ApiError


class CompletionRequest(Sampling, kw_only=True):
    """Body of POST /v1/completions. `prompt`: a text, texts, token ids, or lists of token ids. `suffix`: what comes
    behind the text that is wanted, for models that fill in the middle.
    """

    prompt: str | list[str | TokenId | TokenIds]
    max_tokens: MaxTokens | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    echo: bool | None = None
    best_of: Literal[1] | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str | None = None


def split_prompt(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts in the four forms of the API's `prompt`. Raises ApiError 400 for an empty or mixed list."""
    if isinstance(prompt, str):
        return [prompt]
    kinds = set(map(type, prompt))
    if not prompt:
        raise ApiError(
            400,
            "`prompt` is an empty list; give a text, token ids or a list of either",
            param="prompt",
            code="invalid_value",
        )
    if kinds == {int}:
        return [prompt]  # type: ignore[list-item]
    if kinds in ({str}, {list}):
        return prompt  # type: ignore[return-value]
    raise ApiError(
        400,
        "`prompt` mixes kinds; its entries must be all texts, all token ids or all lists of token ids",
        param="prompt",
        code="invalid_value",
    )
