"""The sampling fields of a request as the engine's parameters."""

from __future__ import annotations

from homenode.engine.request import SamplingParams
from homenode.server.apis.openai.requests import Sampling

_NO_LIMIT = -1  # as a number of tokens
_SMALLEST_TOP_P = 1e-9  # top_p 0 is valid in the API and means the most likely token alone


def sampling_of(body: Sampling) -> SamplingParams:
    """What both endpoints share, without number of tokens and logprobs; None where the model's defaults apply."""
    return SamplingParams(
        min_tokens=body.min_tokens or 0,
        temperature=body.temperature,
        top_p=None if body.top_p is None else max(body.top_p, _SMALLEST_TOP_P),
        top_k=None if body.top_k is None else max(body.top_k, 0),
        min_p=body.min_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logit_bias=body.logit_bias or {},
        stop=body.stop or [],
        n=body.n or 1,
    )


def max_tokens_of(asked: int | None) -> int | None:
    """The most tokens of an answer; None for as many as the context takes, which clients ask for by -1 as well."""
    return None if asked == _NO_LIMIT else asked
