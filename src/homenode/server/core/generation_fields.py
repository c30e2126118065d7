"""Fields of request bodies that APIs share, beside those of the table of sampling parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from homenode.sampling import SamplingParams
from homenode.server.core.kv_transfer import KvTransferParams
from homenode.server.core.setting_fields import SettingFields, given_settings

_INT64 = 2**63 - 1

Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Count
TokenIds = list[TokenId]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
MOST_STOPS = 128
Stops = StopString | Annotated[list[StopString], Meta(max_length=MOST_STOPS)]
ServiceTierField = Literal["auto", "default", "flex", "priority"]
TIER_REMEDY = "give one of auto, default, flex and priority"
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
KEPT_VERBOSITY = ("medium", None)  # of the values of `verbosity`, those that ask for nothing else than there is


class RequestFields(SettingFields, kw_only=True):
    """Fields of how tokens are drawn, when that ends and whose turn it is, in this server's words, which several APIs
    take.
    """

    seed: Annotated[int, Meta(ge=-_INT64 - 1, le=_INT64)] | None = None
    stop_token_ids: Annotated[TokenIds, Meta(max_length=128)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Count | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    cache_salt: Annotated[str, Meta(max_length=128)] | None = None
    session: Annotated[str, Meta(min_length=1, max_length=128)] | None = None  # whose KV stays on disk
    speculative: bool | None = None  # false: no token of the answer is drafted
    kv_transfer_params: KvTransferParams | None = None

    def sampling(self, **more: Any) -> SamplingParams:
        """Return how tokens are drawn, and `more` of it."""
        given = {
            "min_tokens": self.min_tokens or 0,
            "seed": self.seed,
            "stop_token_ids": tuple(self.stop_token_ids or ()),
            "ignore_eos": bool(self.ignore_eos),
        }
        return SamplingParams(**{**given, **given_settings(self), **more})


class GenerationFields(RequestFields, kw_only=True):
    """The same, and what the APIs of OpenAI have besides."""

    stop: Stops | None = None
    service_tier: ServiceTierField | None = None
    return_timings: bool | None = None  # the answer says what it took
    timings_per_token: bool | None = None  # so does each chunk of a stream

    def sampling(self, **more: Any) -> SamplingParams:
        """Return how tokens are drawn, and `more` of it."""
        return super().sampling(**{"stop": self.stop or [], **more})
