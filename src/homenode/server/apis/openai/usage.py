"""The part that the answers of both endpoints share."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from homenode.server.apis.openai.requests import Sampling
from homenode.server.core.generation import Generation

LEAST_LOGPROB = -9999.0  # stands for minus infinity, which JSON cannot carry


class PromptDetails(Struct):
    """`cached_tokens`: prompt tokens whose keys and values were found in the prefix cache."""

    cached_tokens: int


class CompletionDetails(Struct):
    """`reasoning_tokens`: tokens of the answers that were thoughts."""

    reasoning_tokens: int


class Usage(Struct, kw_only=True):
    """Tokens of a whole request: each prompt counted once, every choice's tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails | UnsetType = UNSET


def wants_timings(body: Sampling) -> bool:
    """Return whether a whole answer is to say what it took."""
    return bool(body.return_timings or body.timings_per_token)


def usage_of(generation: Generation) -> Usage:
    """The tokens of a generation so far."""
    prompt, completion, cached = generation.usage()
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached),
    )
