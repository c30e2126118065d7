"""Requests of the OpenAI API as this server takes them.

A field is here for one of three reasons: it works; it changes nothing about the answer (`user`, `metadata`); or it would
change the answer, this server lacks what it stands for, and its type leaves only the value that asks for nothing
(`best_of: 1`), so that any other one is refused by name. Every other field is ignored, and named in the header
x-homenode-ignored. `None` means the default everywhere, as clients send nulls for what they leave open.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from homenode.server.core.kv_transfer import KvTransferParams
from homenode.server.core.setting_fields import SettingFields
from homenode.server.http.decoding import FieldHints

_INT64 = 2**63 - 1

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenIds = list[TokenId]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
MaxTokens = Annotated[
    int, Meta(ge=-1, le=2**31 - 1)
]  # -1: no limit but the context's, as clients of llama.cpp write it


class StreamOptions(Struct, forbid_unknown_fields=True, kw_only=True):
    """What a stream carries besides text."""

    include_usage: bool | None = None  # a last chunk with the totals
    continuous_usage_stats: bool | None = None  # the totals so far in every chunk
    include_obfuscation: bool | None = None  # padding against traffic analysis; none is ever sent


class Sampling(SettingFields, kw_only=True):
    """What both generating endpoints share, besides the sampling parameters of the table."""

    model: str | None = None
    seed: Annotated[int, Meta(ge=-_INT64 - 1, le=_INT64)] | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=16)] | None = None
    stop_token_ids: Annotated[TokenIds, Meta(max_length=128)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Meta(max_length=1024)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Meta(max_length=128)] | None = None
    kv_transfer_params: KvTransferParams | None = None
    return_timings: bool | None = None  # the answer says what it took
    timings_per_token: bool | None = None  # so does each chunk of a stream
    user: str | None = None


# What to do about values that a field does not take, where that is not plain from the range it has.
REMEDIES = dict.fromkeys(
    ("max_tokens", "max_completion_tokens"), "leave it out, or send -1, for no limit but the context's"
)

# Fields that would change the answer and have only the value that asks for nothing: what to tell who sends another one.
UNSUPPORTED = {
    "best_of": "ask for several choices with `n` and pick one yourself",
    "suffix": "text can only be continued, not filled in",
    "response_format": "only {\"type\": \"text\"} is supported so far",
    "modalities": "only [\"text\"] is supported",
    "audio": "only text is supported",
    "moderation": "there is no moderation",
}  # fmt: skip

HINTS = FieldHints(REMEDIES, UNSUPPORTED)
