"""Ranks of requests by the names that clients have for them, and which of them a key may have. Pure.

`flex` yields to `default`, and `priority` goes before it: to the scheduler a tier is a priority. Requests that leave
their tier open, or say `auto`, have the first tier of their key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

ServiceTier: TypeAlias = Literal["flex", "default", "priority"]
# `standard`: any tier but `priority`.
AskedTier: TypeAlias = Literal["auto", "default", "flex", "priority", "standard"]
PRIORITY_OF_TIER: Final[dict[ServiceTier, int]] = {"priority": -1, "default": 0, "flex": 1}
ALL_TIERS: Final[tuple[ServiceTier, ...]] = ("default", "priority", "flex")  # of keys that say nothing


class ServiceRank(NamedTuple):
    """The tier that an answer names, and the priority that the scheduler goes by."""

    tier: ServiceTier
    priority: int


BEHIND_ALL: Final = ServiceRank("flex", 2**31 - 1)  # of requests that nobody waits for


class ServiceTierError(Exception):
    """A rank that a request asks for and cannot have. `param`: the field at fault."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.message, self.param = message, param


def rank_of(asked: AskedTier | None, priority: int | None, tiers: Sequence[ServiceTier], key: str = "") -> ServiceRank:
    """The rank of a request whose key, named `key`, may have these `tiers`. `priority`: a number that says it more
    finely; below 0 it is of the tier `priority`, above of `flex`. Raises ServiceTierError.
    """
    tier = _tier_of(asked, tiers)
    may = " or ".join(f"`{each}`" for each in tiers)
    if tier not in tiers:
        raise ServiceTierError(f"`service_tier`: the key `{key}` has {may}, not `{tier}`", "service_tier")
    if priority is None:
        return ServiceRank(tier, PRIORITY_OF_TIER[tier])
    found = _tier_of_number(priority)
    if asked not in (None, "auto") and found != tier:
        text = f"`priority` {priority} is not of the `service_tier` `{tier}`, but of `{found}`; send one of both"
        raise ServiceTierError(text, "priority")
    if found not in tiers:
        text = f"`priority` {priority} is of the service tier `{found}`; the key `{key}` has {may}"
        raise ServiceTierError(text, "priority")
    return ServiceRank(found, priority)


def _tier_of(asked: AskedTier | None, tiers: Sequence[ServiceTier]) -> ServiceTier:
    if asked is None or asked == "auto":
        return tiers[0]
    if asked == "standard":
        return "flex" if "flex" in tiers and "default" not in tiers else "default"
    return asked


def _tier_of_number(priority: int) -> ServiceTier:
    return "priority" if priority < 0 else "flex" if priority else "default"
