"""The fields that both endpoints share, in the words of the generation core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from homenode.sampling import SamplingParams
from homenode.server.apis.openai.requests import Sampling, check_unbuilt
from homenode.server.core.prompts import EncodedPrompt
from homenode.server.core.request import GenerationRequest
from homenode.server.core.setting_fields import given_settings, switched_off

NO_LIMIT = -1  # as a number of tokens
_OF_MIROSTAT_AND_DRY = (
    "mirostat", "mirostat_tau", "mirostat_eta", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"
)  # fmt: skip


def sampling_of(body: Sampling) -> SamplingParams:
    """Return what both endpoints share, without number of tokens and logprobs; None where the model's defaults apply.

    Raises ApiError 400 for a field that asks for what this server does not have.
    """
    check_unbuilt(body)
    settings = given_settings(body)
    if body.repeat_penalty is not None:
        settings.setdefault("repetition_penalty", body.repeat_penalty)
    return body.sampling(
        logit_bias={token: float(bias) for token, bias in (body.logit_bias or {}).items()},
        n=body.n or 1,
        **{**settings, **_steered(body), **switched_off(body.samplers)},
    )


def _steered(body: Sampling) -> dict[str, Any]:
    """Return what Mirostat and DRY are told, as far as a request says it."""
    given = {name: value for name in _OF_MIROSTAT_AND_DRY if (value := getattr(body, name)) is not None}
    if body.bad_words:
        given["bad_words"] = tuple(body.bad_words)
    if body.dry_sequence_breakers is not None:
        given["dry_sequence_breakers"] = tuple(body.dry_sequence_breakers)
    return given


def generation_request(
    body: Sampling,
    prompts: Sequence[EncodedPrompt],
    sampling: SamplingParams,
    max_tokens: int | None,
    *,
    echo: bool = False,
    shows_stop: bool = False,
) -> GenerationRequest:
    """The request of the core. `sampling`: as `sampling_of` gives it, with logprobs. `max_tokens`: -1 and None ask for
    as many as the context takes.
    """
    return GenerationRequest(
        prompts=prompts,
        sampling=sampling,
        max_tokens=None if max_tokens == NO_LIMIT else max_tokens,
        skip_special_tokens=body.skip_special_tokens is not False,
        service_tier=body.service_tier,
        priority=body.priority,
        cache_salt=body.cache_salt or "",
        session=body.session or "",
        speculative=body.speculative is not False,
        echo=echo,
        shows_stop=shows_stop,
        token_ids=bool(body.return_token_ids),
        stream=bool(body.stream),
        kv_transfer=body.kv_transfer_params,
    )
