"""Requests of the OpenAI API as this server takes them.

A field is here for one of three reasons: it works; it changes nothing about the answer (`user`, `metadata`); or it
would change the answer, this server lacks what it stands for, and its type leaves only the value that asks for nothing
(`audio: null`), so that any other one is refused by name. Every other field is ignored, and named in the header
x-homenode-ignored. `None` means the default everywhere, as clients send nulls for what they leave open.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from msgspec import Meta, Struct

from homenode.server.apis.openai.structured import StructuredFields
from homenode.server.core.generation_fields import TIER_REMEDY, Count, TokenId
from homenode.server.http.decoding import FieldHints
from homenode.server.http.failures import ApiError

# A number, or its decimal digits, as some clients write it.
Bias = Annotated[float, Meta(ge=-100, le=100)] | Annotated[str, Meta(pattern=r"^-?(100|[0-9]{1,2})(\.[0-9]{1,9})?$")]
# -1: no limit but the context's, as clients of llama.cpp write it.
MaxTokens = Annotated[int, Meta(ge=-1, le=2**31 - 1)]


class StreamOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """The parts that a stream carries besides text."""

    include_usage: bool | None = None  # a last chunk with the totals
    continuous_usage_stats: bool | None = None  # the totals so far in every chunk
    include_obfuscation: bool | None = None  # padding against traffic analysis; none is ever sent


class UnbuiltFields(StructuredFields, kw_only=True):
    """Fields of other servers that would change the answer, taken where they ask for nothing (`check_unbuilt`)."""

    tfs_z: float | None = None
    use_beam_search: bool | None = None


# What asks for nothing, by the field.
NEUTRAL: dict[str, Any] = {
    "tfs_z": 1,
    "use_beam_search": False,
}


def check_unbuilt(body: UnbuiltFields) -> None:
    """Raises ApiError 400 for a field that asks for what this server does not have."""
    for name, neutral in NEUTRAL.items():
        value = getattr(body, name)
        if value is not None and value != neutral:
            text = f"`{name}` is not supported: leave it out, or send {json.dumps(neutral)}"
            raise ApiError(400, text, param=name, code="unsupported_parameter")


MOST_CHOICES = 128
Choices = Annotated[int, Meta(ge=1, le=MOST_CHOICES)]


class Sampling(UnbuiltFields, kw_only=True):
    """The part that both generating endpoints share, besides the sampling parameters of the table. `repeat_penalty`:
    the name that llama.cpp has for `repetition_penalty`.
    """

    model: str | None = None
    n: Choices | None = None
    include_stop_str_in_output: bool | None = None  # a text ends with the stop string that ended it
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=1024)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    user: str | None = None
    bad_words: Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=32)] | None = None
    samplers: (  # names, or the letters that llama.cpp has for them
        Annotated[list[Annotated[str, Meta(max_length=32)]], Meta(max_length=32)]
        | Annotated[str, Meta(max_length=32)]
        | None
    ) = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: Annotated[float, Meta(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0, le=1)] | None = None
    dry_multiplier: Annotated[float, Meta(ge=0, le=100)] | None = None
    dry_base: Annotated[float, Meta(ge=1, le=100)] | None = None
    dry_allowed_length: Count | None = None
    dry_penalty_last_n: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    dry_sequence_breakers: (
        Annotated[list[Annotated[str, Meta(min_length=1, max_length=64)]], Meta(max_length=32)] | None
    ) = None


# What to do about values that a field does not take, where that is not plain from the range it has.
REMEDIES = (
    dict.fromkeys(("max_tokens", "max_completion_tokens"), "leave it out, or send -1, for no limit but the context's")
    | dict.fromkeys(
        ("reasoning_effort", "reasoning.effort"), "give one of none, minimal, low, medium, high, xhigh and max"
    )
    | {"service_tier": TIER_REMEDY}
)

# Fields that would change the answer and have only the value that asks for nothing: what to tell who sends another one.
UNSUPPORTED = {
    "modalities": "only [\"text\"] is supported",
    "audio": "only text is supported",
    "moderation": "there is no moderation",
}  # fmt: skip

HINTS = FieldHints(REMEDIES, UNSUPPORTED)
