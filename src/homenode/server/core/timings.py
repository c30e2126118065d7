"""The time that an answer took, for every API that tells it."""

from __future__ import annotations

from msgspec import Struct

from homenode.server.core.generation import Generation


class AnswerTimings(Struct, kw_only=True):
    """The time that an answer took: milliseconds in the queue, for the prompt, and for the tokens behind the first; and
    the tokens of each, prompt tokens found in the prefix cache apart.
    """

    queue_ms: float
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float
    cache_n: int
    disk_n: int  # of these, the ones whose KV came from disk
    forced_n: int  # of the answer, those that its grammar left no choice about
    draft_n: int  # tokens that were drafted for it...
    draft_n_accepted: int  # ...and those of them that were right


def timings_of(generation: Generation) -> AnswerTimings:
    """Return what a generation has taken so far."""
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
        disk_n=sum(sequence.disk_tokens for sequence in generation.sequences if sequence.first_of_prompt),
        forced_n=sum(sequence.forced_tokens for sequence in generation.sequences),
        draft_n=sum(sequence.drafted_tokens for sequence in generation.sequences),
        draft_n_accepted=sum(sequence.accepted_tokens for sequence in generation.sequences),
    )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
