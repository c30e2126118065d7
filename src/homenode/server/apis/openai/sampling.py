"""The sampling fields of a request as the engine's parameters."""

from __future__ import annotations

from typing import Any

from homenode.sampling import SETTINGS, SamplingParams
from homenode.server.apis.openai.requests import Sampling

_NO_LIMIT = -1  # as a number of tokens


def sampling_of(body: Sampling) -> SamplingParams:
    """What both endpoints share, without number of tokens and logprobs; None where the model's defaults apply."""
    settings: dict[str, Any] = {
        name: setting.clamped(value) for name, setting in SETTINGS.items() if (value := getattr(body, name)) is not None
    }
    return SamplingParams(
        min_tokens=body.min_tokens or 0,
        seed=body.seed,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logit_bias=body.logit_bias or {},
        stop=body.stop or [],
        n=body.n or 1,
        **settings,
    )


def max_tokens_of(asked: int | None) -> int | None:
    """The most tokens of an answer; None for as many as the context takes, which clients ask for by -1 as well."""
    return None if asked == _NO_LIMIT else asked
