"""What the answers of both endpoints share."""

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


class AnswerTimings(Struct, kw_only=True):
    """What an answer took: milliseconds in the queue, for the prompt, and for the tokens behind the first; and the
    tokens of each, prompt tokens found in the prefix cache apart.
    """

    queue_ms: float
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    cache_n: int


def timings_of(generation: Generation) -> AnswerTimings:
    """What a generation has taken so far."""
    prompt, completion, cached = generation.usage()
    queue_s, prefill_s, decode_s = generation.timings()
    computed = max(0, prompt - cached)
    return AnswerTimings(
        queue_ms=_ms(queue_s),
        prompt_n=computed,
        prompt_ms=_ms(prefill_s),
        prompt_per_second=round(computed / prefill_s, 2) if prefill_s > 0 else 0.0,
        predicted_n=completion,
        predicted_ms=_ms(decode_s),
        predicted_per_second=round((completion - 1) / decode_s, 2) if decode_s > 0 else 0.0,
        cache_n=cached,
    )


def wants_timings(body: Sampling) -> bool:
    """Whether a whole answer is to say what it took."""
    return bool(body.return_timings or body.timings_per_token)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def usage_of(generation: Generation) -> Usage:
    """The tokens of a generation so far."""
    prompt, completion, cached = generation.usage()
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached),
    )
