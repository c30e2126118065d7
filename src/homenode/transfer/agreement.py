"""Whether two fingerprints agree, fact by fact. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_MOST_SHOWN = 120  # characters of a value in a message


def differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Each fact in which the two do not agree, in words; empty when KV may be handed over. `protocol` is a range: an
    overlap is enough."""
    found = []
    for name in (*ours, *(name for name in theirs if name not in ours)):
        mine, other = ours.get(name), theirs.get(name)
        if mine != other and not (name == "protocol" and _overlap(mine, other)):
            found.append(f"{name} is {_seen(mine)} here and {_seen(other)} there")
    return found


def _seen(value: str | None) -> str:
    return "not told" if value is None else repr(value[:_MOST_SHOWN])


def _overlap(mine: str | None, other: str | None) -> bool:
    first, second = _versions(mine), _versions(other)
    return first is not None and second is not None and max(first[0], second[0]) <= min(first[1], second[1])


def _versions(text: str | None) -> tuple[int, int] | None:
    oldest, _, newest = (text or "").partition("-")
    if not (oldest.isdecimal() and newest.isdecimal() and len(oldest) < 8 and len(newest) < 8):
        return None
    return int(oldest), int(newest)
